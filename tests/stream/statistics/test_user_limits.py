"""Limits of one user in a window are a rule on their own rows, whatever others send and whatever was measured."""

from __future__ import annotations

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
from stream.config import Config
from stream.messages.message import WINDOW
from stream.protocol.parts import statistics_of
from stream.statistics.plan import Allowance, Due, PlanError
from stream.statistics.values import plan as values_plan
from stream.statistics.window_release import Drawn, WindowStatistics
from stream.statistics.window_rows import WindowRows, contributions_of
from stream.statistics.window_rows import counted as counted_of
from stream.storage.row_store import ROW
from stream.terms import Terms, UserLimits
from tests.support.builders import SLOT, bus_config, located_rows, with_histograms
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


def test_of_a_users_events_at_one_time_the_one_of_lowest_cell_and_value_counts(tmp_path: Path) -> None:
    """40 windows with many repeats, in any order: the literal rule, and nothing else is left out."""
    config = bus_config(tmp_path)
    for seed in range(40):
        rows = crowded_rows(seed)
        lowest: dict[tuple[int, int], tuple[int, int]] = {}
        for cell, user, time, value in rows[["cell", "user", "time", "value"]].tolist():
            lowest[user, time] = min(lowest.get((user, time), (cell, value)), (cell, value))
        contributions = contributions_of(rows, config.value.upper_quanta)
        counts, pair = (
            contributions.counts,
            np.repeat(np.arange(len(contributions.counts.samples)), contributions.counts.samples),
        )
        cells, users = counts.cells[counts.pair_cell[pair]].tolist(), counts.users[counts.pair_user[pair]].tolist()
        kept = zip(users, contributions.times.tolist(), cells, contributions.values.tolist(), strict=True)
        assert {(user, time): (cell, value) for user, time, cell, value in kept} == lowest
        assert len(contributions.values) == len(lowest) < len(rows)


def test_users_within_the_limits_count_in_full(tmp_path: Path) -> None:
    rows, config = crowded_rows(1), bus_config(tmp_path)
    whole = window_rows(rows, config, UserLimits(cells=9, events=400))
    assert whole.beyond_limits == 0
    assert window_rows(rows, config, UserLimits()).beyond_limits == 0


@pytest.mark.parametrize(("cells", "events"), [(3, 400), (9, 10), (2, 25), (1, 1), (0, 7), (4, 0)])
def test_of_a_user_above_a_limit_count_the_first_events_and_their_fullest_cells(
    cells: int, events: int, tmp_path: Path
) -> None:
    """Compared with the rule applied user by user, in 40 windows."""
    config = bus_config(tmp_path)
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


def changes_with_others(rule: Rule, seed: int) -> bool:
    """Whether the rows of a user that count depend on which other users are present."""
    rows = crowded_rows(seed)
    together = rule(rows)
    return any(
        sorted_rows(together[together["user"] == user]) != sorted_rows(rule(rows[rows["user"] == user]))
        for user in np.unique(rows["user"]).tolist()
    )


def changes_with_values(rule: Rule, seed: int) -> bool:
    """Whether which rows count, and how many a user has in each cell, depends on what was measured."""
    rows = crowded_rows(seed)
    other = rows.copy()
    other["value"] = np.random.default_rng(seed + 1).integers(0, 6500, len(rows))
    where = [name for name in ROW.names or () if name != "value"]
    return sorted_rows(rule(rows)[where]) != sorted_rows(rule(other)[where])


def test_neither_others_nor_values_decide_what_counts_of_a_user(tmp_path: Path) -> None:
    """40 windows: the neighbours of either relation differ in their own user's part only, so no sensitivity changes."""
    limits, config = UserLimits(cells=3, events=20), bus_config(tmp_path)

    def counted(rows: np.ndarray) -> np.ndarray:
        which = counted_of(limits, rows, contributions_of(rows, config.value.upper_quanta))
        return rows if which is None else rows[which]

    assert not any(changes_with_others(counted, seed) for seed in range(40))
    assert not any(changes_with_values(counted, seed) for seed in range(40))


def test_a_limit_on_the_whole_window_or_by_speed_is_caught() -> None:
    """The planted bugs: the first events whoever sent them; the fastest events of each user."""

    def first_of_all(rows: np.ndarray) -> np.ndarray:
        return rows[np.argsort(rows["time"], kind="stable")][:100]

    def fastest(rows: np.ndarray) -> np.ndarray:
        order = np.lexsort((-rows["value"], rows["user"]))
        ranked = rows[order]
        return ranked[np.arange(len(rows)) - np.searchsorted(ranked["user"], ranked["user"]) < 20]

    assert changes_with_others(first_of_all, 3)
    assert changes_with_values(fastest, 3)


def statistics_in(folder: Path, **settings: Any) -> WindowStatistics:
    return statistics_of(bus_config(folder, **settings))


def planned_and_drawn(statistics: WindowStatistics, rows: np.ndarray) -> tuple[Any, Drawn | None, dict[str, Any]]:
    """Plan, draw and close marker of the first window."""
    window = statistics.terms.window_at(SLOT)
    arranged = statistics.arrange(rows, window)
    left = np.full(arranged.counts.n_users, statistics.terms.privacy.budget)
    plan = statistics.plan(
        arranged, Due(statistics.terms, window, "11111111-1111-4111-8111-111111111111"), Allowance(left, 10**9)
    )
    drawn = statistics.draw(plan, arranged, Noise())
    messages, _ = statistics.compose(plan, drawn, b"", 1)
    marker = json.loads(messages[-1].value)
    validate(WINDOW, marker)
    return plan, drawn, marker


def test_a_window_is_drawn_under_the_limits_it_was_planned_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits that are changed between plan and draw hold from the next window on; histograms see the same rows."""
    rows = located_rows(4, 500, users=6)
    with monkeypatch.context() as narrow:
        narrow.setattr("stream.terms.MAX_CELLS_PER_USER", 2)
        narrow.setattr("stream.terms.MAX_EVENTS_PER_USER", 40)
        before = statistics_of(with_histograms("values", tmp_path, ["ug"]))
    plan, drawn, _ = planned_and_drawn(before, rows)
    assert plan.terms.limits == UserLimits(cells=2, events=40)
    after = statistics_of(with_histograms("values", tmp_path, ["ug"]))
    arranged = after.arrange(rows, after.terms.window_at(SLOT))
    again = after.draw(plan, arranged, Noise())
    assert again is not None
    assert drawn is not None
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
def test_ten_made_up_users_in_2200_cells_cost_no_more_than_their_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 000 messages, which without limits kept a window from closing for over 18 minutes: now the sweep ends
    early."""
    evaluations = []

    def counted(*given: Any, **named: Any) -> Suppression:
        suppression = sweep_chop_user(*given, **named)
        evaluations.append(suppression.evaluations)
        return suppression

    monkeypatch.setattr(values_plan, "sweep_chop_user", counted)
    statistics = statistics_in(tmp_path)
    rows = made_up_users(10, 2_200)
    arranged = statistics.arrange(rows, statistics.terms.window_at(SLOT))
    assert arranged.beyond_limits == 12_000
    assert np.bincount(arranged.counts.pair_user).max() == 1_000
    _, _, marker = planned_and_drawn(statistics, rows)
    assert marker["cut_short"] == ["suppression"]
    assert len(evaluations) == 1
    assert evaluations[0] <= MAX_EVALUATIONS


def test_what_public_counts_make_too_costly_is_left_out_and_said_in_the_close_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = crowded_rows(2)
    _, _, marker = planned_and_drawn(statistics_in(tmp_path), rows)
    assert "cut_short" not in marker
    monkeypatch.setattr(values_plan, "MAX_PAIRS", 10)
    plan, drawn, marker = planned_and_drawn(statistics_in(tmp_path), rows)
    assert marker["cut_short"] == ["suppression"]
    assert drawn is not None
    assert np.array_equal(plan.retained, drawn.counts.samples), "everything is retained"
    plain = {"speed.suppression": "none", "speed.clipping": "none", "speed.post_processing": []}
    assert "cut_short" not in planned_and_drawn(statistics_in(tmp_path, **plain), rows)[2]
