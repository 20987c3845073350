"""Of a window's cells those differences are clear that noise does not explain: how often that errs, what it finds, and
what is compared with what."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import h3
import numpy as np
import pytest
from scipy.stats import laplace, norm

from dpcore.arrays import FloatArray
from stream.messages.cells import cells_of
from stream.serve import differences
from stream.serve.city.combining import LAPLACE, NORMAL
from stream.serve.differences import FALSE_SHARE, Values, beside, clear_level, from_schedule, from_typical, verdicts

WINDOWS, CELLS, DIFFERING, SEED = 400, 200, 20, 19
FAR = 4.75
"""Standard errors of a simulated share above its bound that a right rule exceeds once in a million runs."""

CELL = "87489e342ffffff"
PARTS = sorted(h3.cell_to_children(h3.cell_to_parent(CELL, 6), 7))

Pair = tuple[Values, Values]


def noisy(rng: np.random.Generator, exact: FloatArray | float, deviation: FloatArray, is_laplace: bool) -> Values:
    """Released values of this deviation with 95 % intervals."""
    count = len(deviation)
    noise = rng.laplace(0, 1 / np.sqrt(2), count) if is_laplace else rng.normal(size=count)
    value, half = exact + noise * deviation, (LAPLACE if is_laplace else NORMAL) * deviation
    return Values(value, value - half, value + half, deviation, np.full(count, is_laplace), np.zeros(count, dtype=bool))


def another_day(rng: np.random.Generator, shift: FloatArray) -> Pair:
    one, other = rng.uniform(0.5, 1.5, (2, len(shift)))
    return noisy(rng, 30 + shift, one, True), noisy(rng, 30, other, True)


def gaussian(rng: np.random.Generator, shift: FloatArray) -> Pair:
    ones = np.ones(len(shift))
    return noisy(rng, 30 + shift, ones, False), noisy(rng, 30, ones, False)


def of_each(rng: np.random.Generator, shift: FloatArray) -> Pair:
    return noisy(rng, 30 + shift, np.ones(len(shift)), False), noisy(rng, 30, rng.uniform(0.5, 1.5, len(shift)), True)


KINDS: list[Callable[[np.random.Generator, FloatArray], Pair]] = [another_day, gaussian, of_each]


class Counts(NamedTuple):
    """Of each window (W,): clear cells that differ, that do not, and of how many of both the error misses the true
    difference."""

    right: FloatArray
    wrong: FloatArray
    missed: FloatArray

    def exceeds(self, cells: FloatArray) -> bool:
        """Whether these cells are on average more than :data:`FALSE_SHARE` of the clear ones, beyond chance."""
        shares = cells / np.maximum(self.right + self.wrong, 1)
        return bool(shares.mean() > FALSE_SHARE + FAR * shares.std() / np.sqrt(len(shares)))


def simulated(kind: Callable[..., Pair], shift: float, windows: int = WINDOWS) -> Counts:
    """Windows in which :data:`DIFFERING` cells differ by ``shift``, or none where that is 0."""
    rng, differs = np.random.default_rng(SEED), (np.arange(CELLS) < DIFFERING) & (shift > 0)
    rows = []
    for _ in range(windows):
        now, then = kind(rng, shift * differs)
        error, clear = verdicts(now, then)
        off = np.abs(now.value - then.value - shift * differs)
        rows.append([(clear & part).sum() for part in (differs, ~differs, off > error)])
    return Counts(*np.array(rows, dtype=float).T)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [0, 4, 8])
def test_at_most_one_in_twenty_of_the_clear_cells_does_not_differ_and_as_few_errors_miss(kind, shift):
    """On average over windows. Where none differs, that is the share of windows with a clear cell."""
    counts = simulated(kind, shift)
    assert not counts.exceeds(counts.wrong)
    assert not counts.exceeds(counts.missed)


@pytest.mark.parametrize(("kind", "least"), [(another_day, 0.75), (gaussian, 0.95)])
def test_differences_of_eight_deviations_are_mostly_clear(kind, least):
    assert simulated(kind, 8, 100).right.mean() >= least * DIFFERING


def tail(size: Any, one: Any, other: Any, is_laplace: bool) -> FloatArray:
    size, one, other = np.broadcast_arrays(*(np.asarray(part, dtype=float) for part in (size, one, other)))
    return differences.tail_of(size, one, other, np.full(size.shape, is_laplace))


def test_chances_are_those_of_the_noise_and_bound_those_of_a_mixture():
    """By integration over the second noise, also far out."""
    z, weight, one = np.linspace(-40, 40, 32_001), 80 / 32_000, laplace(scale=1 / np.sqrt(2))
    for size in (3.0, 8.0, 20.0):
        for other in (1e-9, 0.05, 0.4, 0.9999, 1.0, 2.5):
            of_two = 2 * (one.sf(size - other / np.sqrt(2) * z) * laplace.pdf(z) * weight).sum()
            assert tail(size, 1, other, True) == pytest.approx(of_two, rel=2e-3), (size, other)
            mixed = 2 * (one.sf(size - other * z) * norm.pdf(z) * weight).sum()
            if size > LAPLACE * np.hypot(1, other):
                assert mixed <= tail(size, 1, other, True) * (1 + 1e-6), (size, other)
    assert tail([1.959964, 4.891638], 0.6, 0.8, False) == pytest.approx([0.05, 1e-6], rel=1e-4)
    assert tail(1, 0, 0, True) == 0, "values without noise that differ do so for certain"
    ratio = np.linspace(0, 1, 1001)
    assert (tail(LAPLACE * np.hypot(1, ratio), 1, ratio, True) <= 0.05).all()
    assert (tail(NORMAL * np.hypot(1, ratio), 1, ratio, True) > 0.05).any(), "the smaller quantile does not"


def test_chances_are_chosen_as_by_benjamini_and_hochberg():
    assert clear_level(np.array([0.012, 0.03, 0.04, 0.9]), 4) == 0.05 / 4
    assert clear_level(np.array([0.012, 0.03, 0.037, 0.9]), 4) == 0.05 / 4 * 3, "0.03 alone would not"
    assert clear_level(np.array([0.012]), 5) == -1, "cells with nothing to compare with count"
    assert clear_level(np.array([]), 0) == -1
    assert clear_level(np.array([0.0, 1.0]), 2) == 0.025


def cell_of(value: float, low: float, high: float, scale: float = 0.5, **more: Any) -> dict[str, Any]:
    """A released cell with a mean."""
    known = {"cell": CELL, "status": "published", "relation": "values", "users": 3}
    return (
        known | {"mean": {"value": value, "raw": value, "interval": [low, high], "scale": scale, "unit": "km/h"}} | more
    )


def of_two(now: dict[str, Any], *then: dict[str, Any]) -> dict[str, Any]:
    """The row of the only cell of a window beside those of another."""
    here, there = (cells_of([json.dumps(body).encode() for body in bodies]) for bodies in ([now], then))
    return {name: column[0] for name, column in beside(here, there, "mean").items()}


def test_what_noise_carried_away_is_never_clear_and_of_an_interval_the_side_counts_that_faces_the_other():
    low, high = cell_of(25, 24.9, 32, 0.1), cell_of(33, 29, 37, 0.1)
    assert of_two(low, high)["error"] == of_two(high, low)["error"] == pytest.approx(8.06, abs=0.01)
    assert of_two(cell_of(25, 20, 25.1, 0.1), high)["error"] < 5
    sure = cell_of(20, 19.9, 20.1, 0.05)
    assert of_two(cell_of(60, 60, 60, 0.05), sure)["clear"] is False
    assert of_two(cell_of(59, 58.9, 59.1, 0.05), sure)["clear"] is True


def test_a_cell_without_a_value_of_the_other_window_says_why_and_public_reasons_come_first():
    now, then = cell_of(23, 22, 24), cell_of(26, 25, 27, at_bound=True)
    row = of_two(now, then)
    assert (row["missing"], row["value"], row["low"], row["high"]) == (None, 26, 25, 27)
    suppressed = of_two(now, cell_of(0, 0, 0, status="suppressed", users=1, weight="share"))
    assert (suppressed["missing"], suppressed["users"], suppressed["value"], suppressed["clear"]) == (
        "suppressed", 1, pytest.approx(np.nan, nan_ok=True), False
    )  # fmt: skip
    no_mean = {name: part for name, part in then.items() if name != "mean"}
    for why, other in {
        "area": then | {"excludes": [PARTS[0]]},
        "statistic": no_mean,
        "uncertain": cell_of(26, 5, 47, 7),
        "settings": then | {"relation": "participation"},
    }.items():
        assert of_two(now, other)["missing"] == why
    assert of_two(now, cell_of(0, 0, 1))["missing"] == "uncertain", "of nothing there are no shares"
    assert of_two(now)["missing"] == "none"
    clipped = now | {"relation": "participation", "weight": "sample", "clipping": {"lower": 5, "upper": 25}}
    assert of_two(clipped, clipped | {"clipping": {"lower": 5, "upper": 80}})["missing"] is None, "they follow traffic"
    for more in ({"weight": "share"}, {"clipping": None}, {"relation": "values"}):
        assert of_two(clipped, clipped | more)["missing"] == "settings", more


def test_a_cell_that_was_part_of_a_merged_one_or_is_merged_of_those_of_the_other_window_was_another_area():
    child, parent = cell_of(23, 22, 24), cell_of(23, 22, 24, cell=h3.cell_to_parent(CELL, 6))
    one, two = ({**child, "cell": part} for part in PARTS[:2])
    assert of_two(child, parent)["missing"] == of_two(parent, child)["missing"] == "area"
    assert of_two(two, one)["missing"] == "none", "beside it"
    apart = parent | {"excludes": [one["cell"]]}
    assert of_two(apart, one)["missing"] == "none", "apart from it in both windows"
    assert of_two(apart, one, two)["missing"] == "area"


def typified(cell: str, deviation: float, off: float, **more: Any) -> dict[str, Any]:
    """A cell whose mean is that far from the typical one, give or take so much."""
    models = {
        "deviation": {"method": "m", "value": deviation, "interval": [deviation - off, deviation + off], "unit": "km/h"}
    }
    return cell_of(23, 22, 24, cell=cell, post_processed=models, **more)


def test_a_deviation_from_typical_is_judged_as_the_message_has_it_among_all_cells_with_a_mean():
    def clear(*bodies: dict[str, Any]) -> dict[str, float]:
        return from_typical(cells_of([json.dumps(body).encode() for body in bodies]))

    far, near = typified("a", -13.0, 3.0), typified("b", -7.0, 8.5)
    assert clear(far, near) == {"a": pytest.approx(3.0 * norm.isf(0.0125) / NORMAL, abs=2e-3)}
    edge = typified("a", 3.4, 3.0)
    assert clear(edge)
    assert not clear(edge, near), "of two cells, noise explains one"
    assert not clear(edge, cell_of(23, 22, 24, cell="b")), "also where nothing is typical of the other"
    nobody = {"value": 0, "raw": 0.5, "scale": 1.0, "interval": [0, 3], "unit": "1"}
    assert clear(edge, typified("b", -7.0, 8.5, users=nobody)), "a cell in which nobody is estimated does not count"
    assert clear() == {}


def test_a_mean_is_compared_with_the_timetable_by_its_own_noise_and_not_where_speeds_end_below_it():
    cells = cells_of([json.dumps(cell_of(23, 22, 24)).encode()])
    error = pytest.approx(LAPLACE * np.sqrt(2) * 0.5, rel=1e-3)
    assert from_schedule(cells, {CELL: 25.0}, 100.0) == {CELL: (error, True)}
    assert not from_schedule(cells, {CELL: 24.0}, 100.0)[CELL][1]
    assert from_schedule(cells, {CELL: 101.0}, 100.0) == from_schedule(cells, {}, 100.0) == {}
