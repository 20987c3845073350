"""Limits of one user in a window are a rule on their own rows, whatever others send and whatever was measured. Faulty
fixes are refused at the close of a window: by their user's own fixes alone, and under "values" by no speed."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h3
import msgspec
import numpy as np
import pytest

from dpcore.noise import Noise
from dpcore.suppression import MAX_EVALUATIONS, Suppression, sweep_chop_user
from stream.config import Config, ConfigError, load_config
from stream.diagnosis.reading import ageless
from stream.ingestion.decoding import REASONS, Decoder
from stream.local.kafka import REPO_ROOT
from stream.messages.message import WINDOW
from stream.offline import replay_offline
from stream.protocol.release_protocol import statistics_of
from stream.statistics.fix_rules import refused
from stream.statistics.plan import Due, Plan, PlanError
from stream.statistics.values import plan as values_plan
from stream.statistics.window_release import Drawn
from stream.statistics.window_rows import WindowRows, contributions_of
from stream.statistics.window_rows import counted as counted_of
from stream.storage.row_store import ROW
from stream.terms import FixRules, Terms, UserLimits
from tests.support.builders import SLOT, bus_config, located_rows, riders_config, with_histograms
from tests.support.feeding import event
from tests.support.releasing import plan_of
from tests.support.schemas import validate

Rule = Callable[[np.ndarray], np.ndarray]
AUSTIN = h3.latlng_to_cell(30.27, -97.74, 7)


def hexagons(number: int) -> np.ndarray:
    """Ids of ``number`` hexagons of resolution 7 around one, ascending."""
    rings = next(k for k in range(100) if 3 * k * (k + 1) + 1 >= number)
    return np.sort(np.array([h3.str_to_int(cell) for cell in h3.grid_disk(AUSTIN, rings)], dtype=np.uint64))[:number]


def crowded_rows(seed: int, n: int = 400, users: int = 5, places: int = 9) -> np.ndarray:
    """Rows of few users in many cells, with repeated (user, time) in one cell and in several."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, dtype=ROW)
    rows["cell"] = rng.choice(hexagons(places), n)
    rows["user"] = 1 + np.minimum(rng.geometric(0.4, n), users)
    rows["time"] = SLOT * 1_000_000 + rng.integers(0, n // 2, n) * 1_000_000
    rows["value"] = rng.integers(0, 6500, n)
    return rows


def window_rows(rows: np.ndarray, config: Config, limits: UserLimits) -> WindowRows:
    return WindowRows.of(rows, msgspec.structs.replace(Terms.of(config).reading, limits=limits))


def sorted_rows(rows: np.ndarray) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows.tolist()))


def test_of_a_users_events_at_one_time_the_one_of_lowest_cell_and_value_counts(tmp_path):
    """40 windows with many repeats, in any order: the literal rule, and nothing else is left out."""
    config = bus_config(tmp_path)
    for seed in range(40):
        rows = crowded_rows(seed)
        lowest: dict[tuple[int, int], tuple[int, int]] = {}
        for cell, user, time, value in rows[["cell", "user", "time", "value"]].tolist():
            lowest[user, time] = min(lowest.get((user, time), (cell, value)), (cell, value))
        contributions = contributions_of(rows, config.value.upper_quanta)
        counts = contributions.counts
        pair = np.repeat(np.arange(len(counts.samples)), counts.samples)
        cells, users = counts.cells[counts.pair_cell[pair]].tolist(), counts.users[counts.pair_user[pair]].tolist()
        kept = zip(users, contributions.times.tolist(), cells, contributions.values.tolist(), strict=True)
        assert {(user, time): (cell, value) for user, time, cell, value in kept} == lowest
        assert len(contributions.values) == len(lowest) < len(rows)


@pytest.mark.parametrize(("cells", "events"), [(3, 400), (9, 10), (2, 25), (1, 1), (0, 7), (4, 0)])
def test_of_a_user_above_a_limit_count_the_first_events_and_their_fullest_cells(cells, events, tmp_path):
    """Compared with the rule applied user by user, in 40 windows."""
    config = bus_config(tmp_path)
    for wide in (UserLimits(cells=9, events=400), UserLimits()):
        assert window_rows(crowded_rows(1), config, wide).beyond_limits == 0, "users within the limits count in full"
    for seed in range(40):
        rows = crowded_rows(seed)
        limited = window_rows(rows, config, UserLimits(cells=cells, events=events)).contributions
        whole = contributions_of(rows, config.value.upper_quanta)
        kept = []
        for user in np.unique(rows["user"]).tolist():
            own = contributions_of(rows[rows["user"] == user], config.value.upper_quanta)
            visited = np.repeat(own.counts.cells[own.counts.pair_cell], own.counts.samples)
            order = np.argsort(own.times)[: events or None]
            names, counts = np.unique(visited[order], return_counts=True)
            favourites = names[np.lexsort((names, -counts))][: cells or None]
            kept.append((user, own.times[order].max(), set(favourites.tolist())))
        for user, last, favourites in kept:
            index = np.searchsorted(limited.counts.users, user)
            pairs = np.flatnonzero(limited.counts.pair_user == index)
            assert set(limited.counts.cells[limited.counts.pair_cell[pairs]].tolist()) == favourites
            assert not events or limited.counts.samples[pairs].sum() <= events
            assert max(limited.times[limited.pair_start[p] : limited.pair_start[p + 1]].max() for p in pairs) <= last
        assert np.array_equal(limited.counts.users, whole.counts.users), "nobody disappears"


def changes_with_others(rule: Rule, rows: np.ndarray) -> bool:
    """Whether the rows of a user that count depend on which other users are present."""
    together = rule(rows)
    return any(
        sorted_rows(together[together["user"] == user]) != sorted_rows(rule(rows[rows["user"] == user]))
        for user in np.unique(rows["user"]).tolist()
    )


def changes_with_values(rule: Rule, rows: np.ndarray) -> bool:
    """Whether which rows count, and how many a user has in each cell, depends on what was measured."""
    other, rng = rows.copy(), np.random.default_rng(1)
    other["value"] = rng.integers(0, 2, len(rows)) * rng.integers(0, 6500, len(rows))
    where = [name for name in ROW.names or () if name != "value"]
    return sorted_rows(rule(rows)[where]) != sorted_rows(rule(other)[where])


def test_neither_others_nor_values_decide_what_counts_of_a_user(tmp_path):
    """40 windows: the neighbours of either relation differ in their own user's part only, so no sensitivity changes."""
    limits, config = UserLimits(cells=3, events=20), bus_config(tmp_path)

    def counted(rows: np.ndarray) -> np.ndarray:
        which = counted_of(limits, rows, contributions_of(rows, config.value.upper_quanta))
        return rows if which is None else rows[which]

    for rows in map(crowded_rows, range(40)):
        assert not changes_with_others(counted, rows)
        assert not changes_with_values(counted, rows)


def marker_of(config: Config, rows: np.ndarray) -> tuple[Plan, Drawn | None, dict[str, Any]]:
    """Plan, draw and close marker of the first window."""
    statistics = statistics_of(config)
    plan, arranged = plan_of(statistics, rows)
    drawn = statistics.draw(plan, arranged, Noise())
    messages, _ = statistics.compose(plan, drawn, b"", 1)
    marker = json.loads(messages[-1].value)
    validate(WINDOW, marker)
    return plan, drawn, marker


def test_a_window_is_drawn_under_the_limits_it_was_planned_under(tmp_path, monkeypatch):
    """Limits that are changed between plan and draw hold from the next window on; histograms see the same rows."""
    rows = located_rows(4, 500, users=6)
    with monkeypatch.context() as narrow:
        narrow.setattr("stream.terms.MAX_CELLS_PER_USER", 2)
        narrow.setattr("stream.terms.MAX_EVENTS_PER_USER", 40)
        before = statistics_of(with_histograms("values", tmp_path, ["ug"]))
    plan, arranged = plan_of(before, rows)
    drawn = before.draw(plan, arranged, Noise())
    assert plan.terms.limits == UserLimits(cells=2, events=40)
    after = statistics_of(with_histograms("values", tmp_path, ["ug"]))
    arranged = after.arrange(rows, after.terms.window_at(SLOT))
    again = after.draw(plan, arranged, Noise())
    assert np.array_equal(again.counts.samples, drawn.counts.samples)
    assert int(again.counts.samples.sum()) <= 6 * 40
    terms = msgspec.structs.replace(plan.terms, limits=UserLimits(events=40))
    unlimited = msgspec.structs.replace(plan, due=Due(terms, plan.window, plan.generation))
    with pytest.raises(PlanError, match="changed after they were planned"):
        after.draw(unlimited, arranged, Noise())


def made_up_users(users: int, cells: int) -> np.ndarray:
    """One message of every user in every cell."""
    rows = np.zeros(users * cells, dtype=ROW)
    rows["cell"] = np.tile(hexagons(cells), users)
    rows["user"] = np.repeat(np.arange(1, users + 1), cells)
    rows["time"] = SLOT * 1_000_000 + np.tile(np.arange(cells), users) * 1_000_000
    rows["value"] = 1000
    return rows


@pytest.mark.nightly
def test_ten_made_up_users_in_2200_cells_cost_no_more_than_their_limits(tmp_path, monkeypatch):
    """22 000 messages, which without limits kept a window from closing for over 18 minutes: now the sweep ends
    early."""
    evaluations = []

    def counted(*given: Any, **named: Any) -> Suppression:
        suppression = sweep_chop_user(*given, **named)
        evaluations.append(suppression.evaluations)
        return suppression

    monkeypatch.setattr(values_plan, "sweep_chop_user", counted)
    config, rows = bus_config(tmp_path), made_up_users(10, 2_200)
    read = window_rows(rows, config, Terms.of(config).limits)
    assert read.beyond_limits == 12_000
    assert np.bincount(read.counts.pair_user).max() == 1_000
    _, _, marker = marker_of(config, rows)
    assert marker["cut_short"] == ["suppression"]
    assert len(evaluations) == 1
    assert evaluations[0] <= MAX_EVALUATIONS


def test_what_public_counts_make_too_costly_is_left_out_and_said_in_the_close_marker(tmp_path, monkeypatch):
    rows = crowded_rows(2)
    _, _, marker = marker_of(bus_config(tmp_path), rows)
    assert "cut_short" not in marker
    monkeypatch.setattr(values_plan, "MAX_PAIRS", 10)
    plan, drawn, marker = marker_of(bus_config(tmp_path), rows)
    assert marker["cut_short"] == ["suppression"]
    assert np.array_equal(plan.retained, drawn.counts.samples), "everything is retained"
    plain = {"speed.suppression": "none", "speed.clipping": "none", "speed.post_processing": []}
    assert "cut_short" not in marker_of(bus_config(tmp_path, **plain), rows)[2]


ALL = FixRules(frozen_us=1_200_000_000, teleport_km_h=200.0, standing_m=1_000.0)
BY_PLACE = FixRules(frozen_us=1_200_000_000, teleport_km_h=200.0)
NORTH = 2_700
"""Degrees of latitude in 30 m, in 1e-7 degree: a minute at 1.8 km/h."""


def drive(user: int, fixes: int = 60, step: int = 10 * NORTH, value: int = 1800) -> np.ndarray:
    """A user who drives north for an hour, 300 m a minute."""
    rows = np.zeros(fixes, dtype=ROW)
    rows["user"] = user
    rows["cell"] = 608690849000000000
    rows["time"] = SLOT * 1_000_000 + np.arange(fixes) * 60_000_000
    rows["lat"] = 302_000_000 + step * np.arange(fixes)
    rows["lng"] = -977_000_000
    rows["value"] = value
    return rows


def changed(rows: np.ndarray, column: str, at: Any, value: Any) -> np.ndarray:
    rows = rows.copy()
    rows[column][at] = value
    return rows


TWO = np.concatenate([drive(1, 5), changed(drive(1, 5), "lat", slice(None), 309_000_000)])
"""Two vehicles 80 km apart that share one identifier, and send at the same times."""
CASES: dict[str, tuple[np.ndarray, dict[str, list[int]]]] = {
    "sound": (drive(1), {}),
    "nothing": (drive(1, 0), {}),
    "one fix": (drive(1, 1), {}),
    "an outlier": (changed(drive(1), "lat", 7, 309_000_000), {"teleport": [7]}),
    "the first fix": (changed(drive(1), "lat", 0, 309_000_000), {"teleport": [0]}),
    "a jump for good": (changed(drive(1), "lat", slice(30, 60), 309_000_000 + NORTH * np.arange(30)), {}),
    "far but slow": (changed(drive(1, 2), "time", 1, (SLOT + 3500) * 1_000_000), {}),
    "shared identifier": (TWO, {"teleport": list(range(10))}),
    "stuck for 20 min": (changed(drive(1), "lat", slice(10, 31), 302_270_000), {}),
    "stuck for longer": (changed(drive(1), "lat", slice(10, 32), 302_270_000), {"frozen": list(range(10, 32))}),
    "zeros while it moves": (drive(1, value=0), {"standing": list(range(60))}),
    "zeros in a queue": (drive(1, step=NORTH // 10, value=0), {}),
    "zeros, and one speed": (changed(drive(1, value=0), "value", 5, 900), {}),
}


def reasons(rows: np.ndarray, rules: FixRules = ALL) -> dict[str, list[int]]:
    return {reason: np.flatnonzero(at).tolist() for reason, at in refused(rules, rows).items() if at.any()}


@pytest.mark.parametrize("name", CASES)
def test_a_faulty_fix_is_refused_with_its_reason_and_no_other(name):
    rows, expected = CASES[name]
    assert reasons(rows) == expected
    order = np.random.default_rng(5).permutation(len(rows))
    assert {reason: sorted(order[at].tolist()) for reason, at in reasons(rows[order]).items()} == expected


def crowd(seed: int) -> np.ndarray:
    """Thirty users, some faulty in several ways at once, with repeated fixes, in any order."""
    rng = np.random.default_rng(seed)
    faulty = [case for case, _ in CASES.values()]
    parts = []
    for user in range(1, 31):
        own = faulty[int(rng.integers(len(faulty)))].copy()
        own["user"] = user
        again = own[rng.integers(0, len(own), 4)] if len(own) else own
        again["lat"][:2] += 90_000_000 * int(rng.integers(2))
        parts += [own, again]
    rows = np.concatenate(parts)
    return rows[rng.permutation(len(rows))]


def kept(rules: FixRules) -> Rule:
    return lambda rows: rows[~np.logical_or.reduce(list(refused(rules, rows).values()))]


def test_no_user_decides_about_another_and_under_values_no_speed_does():
    """20 windows of 30 users: removing a user, or changing their values, leaves everybody else's rows as they are."""
    of_speeds = FixRules(moving_us=1_200_000_000, teleport_km_h=400.0, standing_m=1_000.0)
    for rows in map(crowd, range(20)):
        assert not any(changes_with_others(kept(rules), rows) for rules in (ALL, of_speeds))
        assert not changes_with_values(kept(BY_PLACE), rows)


def test_no_rule_that_a_values_feed_can_have_reads_a_speed(tmp_path):
    """Else it would follow from a speed, which is protected, whether a fix counts, which is public."""
    rules = FixRules.of(bus_config(tmp_path, **{"feed.quality.frozen": "20m", "feed.quality.teleport_km_h": 200.0}))
    assert rules == BY_PLACE
    stuck = changed(drive(1), "lat", slice(10, 50), 302_270_000)
    assert reasons(stuck, rules) == reasons(changed(stuck, "value", slice(5, 55), 0), rules) != {}
    assert not any(changes_with_values(kept(rules), crowd(seed)) for seed in range(20))


def test_under_values_the_configuration_refuses_rules_that_read_speeds(tmp_path):
    for key, value in (("fastest_km_h", 300.0), ("standing_m", 1000.0)):
        with pytest.raises(ConfigError, match=f"feed.quality.{key}.*would publish that speed"):
            bus_config(tmp_path, **{f"feed.quality.{key}": value})
    with pytest.raises(ConfigError, match=r"not shorter than window\.slot"):
        bus_config(tmp_path, **{"feed.quality.frozen": "1h"})
    assert bus_config(tmp_path).fastest_km_h is None
    assert riders_config(tmp_path).fastest_km_h == 400.0
    assert riders_config(tmp_path, **{"feed.quality.fastest_km_h": 0}).fastest_km_h is None
    assert FixRules.of(bus_config(tmp_path)) == FixRules(), "without speeds, a parked bus is not told from a stuck unit"


def shipped_riders(tmp_path: Path, **overrides: Any) -> Config:
    settings = {"privacy.user_key_file": str(tmp_path / "user.key"), "window.slot": "4h"} | overrides
    return load_config(REPO_ROOT / "config" / "riders-live.toml", **settings)


def test_under_participation_the_rules_that_read_a_users_own_speeds_are_on_by_default(tmp_path):
    assert FixRules.of(shipped_riders(tmp_path)) == FixRules(moving_us=1_200_000_000, teleport_km_h=400.0)
    off = {"feed.quality.frozen": "0s", "feed.quality.teleport_km_h": 0}
    assert FixRules.of(shipped_riders(tmp_path, **off)) == FixRules()
    longer = shipped_riders(tmp_path, **{"feed.quality.frozen": "30m"})
    assert FixRules.of(longer) == FixRules(moving_us=1_800_000_000, teleport_km_h=400.0)
    short = shipped_riders(tmp_path, **{"window.slot": "15m"})
    assert FixRules.of(short) == FixRules(teleport_km_h=400.0), "no window is long enough to see it"


def test_a_parked_vehicle_is_not_frozen_but_one_that_drives_at_one_position_is():
    rules = FixRules(moving_us=1_200_000_000)
    parked = changed(changed(drive(1), "lat", slice(10, 50), 302_270_000), "value", slice(10, 50), 0)
    assert reasons(parked, rules) == {}
    assert reasons(changed(parked, "value", [20, 49], 900), rules) == {"frozen": [20, 49]}
    assert reasons(parked, FixRules(frozen_us=1_200_000_000)) == {"frozen": list(range(10, 50))}


def test_a_window_is_drawn_under_the_rules_it_was_planned_under(tmp_path):
    """Rules that are changed between plan and draw hold from the next window on."""
    rows = np.concatenate([changed(drive(1), "lat", 7, 303_900_000), drive(2)])
    before = statistics_of(bus_config(tmp_path, **{"feed.quality.teleport_km_h": 200.0}))
    after = statistics_of(bus_config(tmp_path))
    plan, arranged = plan_of(before, rows)
    assert arranged.refused == {"teleport": 1}
    assert arranged.beyond_limits == 0
    drawn = after.draw(plan, after.arrange(rows, plan.window), Noise())
    assert int(drawn.counts.samples.sum()) == 119


def test_what_is_refused_at_the_close_is_counted_and_not_released(tmp_path):
    """Offline, from a file with one outlier, one fix at 0, 0 and one with swapped axes."""
    places = {k: (30.2 + 0.003 * k, -97.7) for k in range(40)} | {9: (30.85, -97.7), 11: (0, 0), 12: (-97.7, 30.2)}
    file, out = tmp_path / "day.ndjson", io.StringIO()
    file.write_bytes(b"\n".join(event("a", (SLOT + 60 * k) * 1000, *place) for k, place in places.items()))
    config = bus_config(tmp_path, **{"feed.quality.teleport_km_h": 200.0})
    summary = replay_offline(config, file, "canonical", out)
    assert summary.refused == {"at-origin": 1, "swapped-axes": 1, "teleport": 1}
    assert summary.events == 37
    bodies = [json.loads(line)["value"] for line in out.getvalue().splitlines()]
    assert sum(body.get("events", 0) for body in bodies) == 37


def test_an_absurd_speed_is_refused_under_participation_and_clipped_under_values(tmp_path):
    events = [event("a", (SLOT + k) * 1000, speed=speed) for k, speed in enumerate((399.0, 401.0))]
    for config, expected in ((riders_config(tmp_path), ["too-fast"]), (bus_config(tmp_path), [])):
        batch = Decoder(ageless(config), bytes(32)).decode(events, SLOT * 1_000_000 + 10_000_000)
        assert [REASONS[code].value for code in batch.reason.tolist()] == expected
