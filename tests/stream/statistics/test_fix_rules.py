"""Faulty fixes are refused at the close of a window: by their user's own fixes alone, and under "values" by no
speed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.noise import Noise
from stream.config import Config, ConfigError, load_config
from stream.diagnosis.reading import ageless
from stream.ingestion.decoding import REASONS, Decoder
from stream.local import REPO_ROOT
from stream.offline import replay_offline
from stream.protocol.parts import statistics_of
from stream.statistics.fix_rules import refused
from stream.statistics.plan import Allowance, Due
from stream.storage.row_store import ROW
from stream.terms import FixRules
from tests.support.builders import SLOT, bus_config, riders_config

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
def test_a_faulty_fix_is_refused_with_its_reason_and_no_other(name: str) -> None:
    rows, expected = CASES[name]
    assert reasons(rows) == expected
    order = np.random.default_rng(5).permutation(len(rows))
    shuffled = {reason: np.flatnonzero(at).tolist() for reason, at in refused(ALL, rows[order]).items() if at.any()}
    assert {reason: sorted(order[at].tolist()) for reason, at in shuffled.items()} == expected


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


def sorted_rows(rows: np.ndarray) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows.tolist()))


Rule = Callable[[np.ndarray], np.ndarray]


def kept(rules: FixRules) -> Rule:
    return lambda rows: rows[~np.logical_or.reduce(list(refused(rules, rows).values()))]


def changes_with_others(rule: Rule, seed: int) -> bool:
    """Whether what is kept of somebody depends on who else is there."""
    rows = crowd(seed)
    together = rule(rows)
    return any(
        sorted_rows(together[together["user"] == user]) != sorted_rows(rule(rows[rows["user"] == user]))
        for user in np.unique(rows["user"]).tolist()
    )


def changes_with_values(rule: Rule, seed: int) -> bool:
    """Whether which fixes are kept depends on the speeds that were reported."""
    rows = crowd(seed)
    other = rows.copy()
    other["value"] = np.random.default_rng(seed).integers(0, 2, len(rows)) * 900
    where = ["user", "time", "lat", "lng"]
    return sorted_rows(rule(rows)[where]) != sorted_rows(rule(other)[where])


def test_no_user_decides_about_another_and_under_values_no_speed_does() -> None:
    """20 windows of 30 users: removing a user, or changing their values, leaves everybody else's rows as they are."""
    of_speeds = FixRules(moving_us=1_200_000_000, teleport_km_h=400.0, standing_m=1_000.0)
    assert not any(changes_with_others(kept(rules), seed) for seed in range(20) for rules in (ALL, of_speeds))
    assert not any(changes_with_values(kept(BY_PLACE), seed) for seed in range(20))


def test_no_rule_that_a_values_feed_can_have_reads_a_speed(tmp_path: Path) -> None:
    """Else it would follow from a speed, which is protected, whether a fix counts, which is public."""
    rules = FixRules.of(bus_config(tmp_path, **{"feed.quality.frozen": "20m", "feed.quality.teleport_km_h": 200.0}))
    assert rules == BY_PLACE
    stuck = changed(drive(1), "lat", slice(10, 50), 302_270_000)
    assert reasons(stuck, rules) == reasons(changed(stuck, "value", slice(5, 55), 0), rules) != {}
    assert not any(changes_with_values(kept(rules), seed) for seed in range(20))


def test_a_rule_that_reads_others_or_speeds_is_caught() -> None:
    """The planted bugs: fixes far from where most are; the rule on zeros, which "values" must not have."""

    def far_from_most(rows: np.ndarray) -> np.ndarray:
        return rows[np.abs(rows["lat"] - np.median(rows["lat"])) < 2_000_000]

    assert changes_with_others(far_from_most, 1)
    assert any(changes_with_values(kept(ALL), seed) for seed in range(20))
    assert any(changes_with_values(kept(FixRules(moving_us=1_200_000_000)), seed) for seed in range(20))


def test_under_values_the_configuration_refuses_rules_that_read_speeds(tmp_path: Path) -> None:
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


def test_under_participation_the_rules_that_read_a_users_own_speeds_are_on_by_default(tmp_path: Path) -> None:
    assert FixRules.of(shipped_riders(tmp_path)) == FixRules(moving_us=1_200_000_000, teleport_km_h=400.0)
    off = {"feed.quality.frozen": "0s", "feed.quality.teleport_km_h": 0}
    assert FixRules.of(shipped_riders(tmp_path, **off)) == FixRules()
    longer = shipped_riders(tmp_path, **{"feed.quality.frozen": "30m"})
    assert FixRules.of(longer) == FixRules(moving_us=1_800_000_000, teleport_km_h=400.0)
    short = shipped_riders(tmp_path, **{"window.slot": "15m"})
    assert FixRules.of(short) == FixRules(teleport_km_h=400.0), "no window is long enough to see it"


def test_a_parked_vehicle_is_not_frozen_but_one_that_drives_at_one_position_is() -> None:
    rules = FixRules(moving_us=1_200_000_000)
    parked = changed(changed(drive(1), "lat", slice(10, 50), 302_270_000), "value", slice(10, 50), 0)
    assert reasons(parked, rules) == {}
    assert reasons(changed(parked, "value", [20, 49], 900), rules) == {"frozen": [20, 49]}
    assert reasons(parked, FixRules(frozen_us=1_200_000_000)) == {"frozen": list(range(10, 50))}


def test_a_window_is_drawn_under_the_rules_it_was_planned_under(tmp_path: Path) -> None:
    """Rules that are changed between plan and draw hold from the next window on."""
    rows = np.concatenate([changed(drive(1), "lat", 7, 303_900_000), drive(2)])
    before = statistics_of(bus_config(tmp_path, **{"feed.quality.teleport_km_h": 200.0}))
    after = statistics_of(bus_config(tmp_path))
    window = before.terms.window_at(SLOT)
    arranged = before.arrange(rows, window)
    assert arranged.refused == {"teleport": 1}
    assert arranged.beyond_limits == 0
    left = np.full(arranged.counts.n_users, before.terms.privacy.budget)
    plan = before.plan(
        arranged, Due(before.terms, window, "11111111-1111-4111-8111-111111111111"), Allowance(left, 10**9)
    )
    drawn = after.draw(plan, after.arrange(rows, window), Noise())
    assert drawn is not None
    assert int(drawn.counts.samples.sum()) == 119


def test_what_is_refused_at_the_close_is_counted_and_not_released(tmp_path: Path) -> None:
    """Offline, from a file with one outlier, one fix at 0, 0 and one with swapped axes."""
    events = [
        {"user": "a", "time": (SLOT + 60 * k) * 1000, "lat": 30.2 + 0.003 * k, "lng": -97.7, "speed": 20.0}
        for k in range(40)
    ]
    events[9]["lat"] = 30.85
    events[11] |= {"lat": 0.0, "lng": 0.0}
    events[12] |= {"lat": -97.7, "lng": 30.2}
    file, out = tmp_path / "day.ndjson", io.StringIO()
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    config = bus_config(tmp_path, **{"feed.quality.teleport_km_h": 200.0})
    summary = replay_offline(config, file, "canonical", out)
    assert summary.refused == {"at-origin": 1, "swapped-axes": 1, "teleport": 1}
    assert summary.events == 37
    bodies = [json.loads(line)["value"] for line in out.getvalue().splitlines()]
    assert sum(body.get("events", 0) for body in bodies) == 37


def test_an_absurd_speed_is_refused_under_participation_and_clipped_under_values(tmp_path: Path) -> None:
    events = [
        json.dumps({"user": "a", "time": (SLOT + k) * 1000, "lat": 30.2, "lng": -97.7, "speed": speed}).encode()
        for k, speed in enumerate((399.0, 401.0))
    ]
    for config, expected in ((riders_config(tmp_path), ["too-fast"]), (bus_config(tmp_path), [])):
        batch = Decoder(ageless(config), bytes(32)).decode(events, SLOT * 1_000_000 + 10_000_000)
        assert [REASONS[code].value for code in batch.reason.tolist()] == expected
