"""What the papers' benchmark computes itself: bounds that hold for the noise as it is, and what one point can change.
The exact filter that bounds a live map."""

import contextlib
import inspect
import io
import itertools
import json
from collections.abc import Iterable
from importlib import import_module

import h3.api.numpy_int as h3
import numpy as np
import pytest

from dpcore.contributions import Counts
from dpcore.earth import local_kilometres
from dpcore.spatial import Domain, E2EPriv, Rectangles
from dpcore.spatial.e2epriv import Objective
from research.__main__ import STUDIES, main
from research.live_bounds import DRAWS, START, Day, Window
from research.papers import euler
from research.papers.bounds import FAILURE, of_components, of_sum
from research.papers.choice import choices, compared
from research.papers.recorded_hour import day_of
from research.papers.sets import population
from research.papers.suppression import cells_after, heavy_hitter, in_another_order, uneven_heavy_hitter
from research.papers.tuning import weighted_median


def law_of_sum(scale: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of the sum of ``draws`` discrete Laplace variables, by Fourier inversion."""
    reach = int(40 * scale * max(draws, 4) ** 0.5)
    values = np.arange(-reach, reach + 1)
    single = np.exp(-np.abs(values) / scale)
    transformed = np.fft.fft(np.fft.ifftshift(single / single.sum()))
    return values, np.fft.fftshift(np.fft.ifft(transformed**draws).real)


@pytest.mark.parametrize("scale", [1.0, 9.0, 81.0])
def test_noise_leaves_its_bounds_no_more_often_than_stated_and_a_quarter_or_half_of_them_more_often(scale):
    for draws in (1, 2, 9, 100, 1521):
        values, probability = law_of_sum(scale, draws)
        bound = of_sum(scale, draws)
        assert probability[np.abs(values) > bound].sum() <= FAILURE < probability[np.abs(values) > bound / 4].sum()
    values, probability = law_of_sum(scale, 1)
    for components in (1, 49, 1521):
        bound = of_components(scale, components)
        beyond, half = (probability[np.abs(values) > part].sum() for part in (bound, bound / 2))
        assert 1 - (1 - beyond) ** components <= FAILURE < 1 - (1 - half) ** components


SIZES, POINTS, BLOCK = (1, 2, 4, 8), 2_000, Rectangles([0], [3], [0], [4])
"""Candidates of a grid of 16 × 16, its points, and a query that covers a part of a block of every size."""


def near_the_floor(beside: int) -> np.ndarray:
    """A grid on which one point moves errors most: ρ = 20 points in :data:`BLOCK`, ``beside`` in the blocks that it
    cuts."""
    counts = np.zeros((16, 16), dtype=np.int64)
    counts[0, 0], counts[3, 0], counts[15, 15] = 20, beside, POINTS - 20 - beside
    return counts


def moved_by_one_point(
    counts: np.ndarray, cells: Iterable[tuple[int, ...]], queries: Rectangles
) -> dict[str, np.ndarray]:
    """Largest change of the error of each size, by objective, over one point more in each of ``cells``."""
    mechanism, total = E2EPriv(SIZES, queries, expected_points=int(counts.sum())), int(counts.sum())
    objectives: tuple[Objective, ...] = ("weighted", "relative")

    def errors(of: np.ndarray) -> np.ndarray:
        return np.array([mechanism.errors(of, Domain.unit_cells(16, 16), 1.25, total, one)[0] for one in objectives])

    before, worst = errors(counts), np.zeros((len(objectives), len(SIZES)))
    for cell in cells:
        more = counts.copy()
        more[cell] += 1
        worst = np.maximum(worst, np.abs(errors(more) - before))
    return dict(zip(objectives, worst, strict=True))


def holds(worst: np.ndarray, changes: np.ndarray) -> bool:
    """Whether no size's error moved by more than it is divided by."""
    return bool((worst <= changes * (1 + 1e-9)).all())


def test_one_point_changes_no_error_by_more_than_what_each_choice_divides_by_and_half_of_it_would_not_do():
    """Every cell of a random grid of 16 × 16 gets one point more, and a cell of grids that come close to the bound for
    each size."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(rng.gamma(0.3, 5, (16, 16)))
    corners = np.sort(rng.integers(0, 16, (100, 2, 2)), axis=1)
    queries = Rectangles.of_cells(corners.transpose(0, 2, 1).reshape(-1, 4))
    worst = moved_by_one_point(counts, np.ndindex(16, 16), queries)
    for name, choice in choices(counts, SIZES, 1.0, 0.2, queries).items():
        assert holds(worst[name.split(",")[0]], choice.changes), name

    grids = [near_the_floor(beside) for beside in range(40, 1_980, 10)]
    moved = [moved_by_one_point(grid, [(0, 0)], BLOCK) for grid in grids]
    for name, choice in choices(grids[0], SIZES, 1.0, 0.2, BLOCK).items():
        most = np.max([one[name.split(",")[0]] for one in moved], axis=0)
        assert holds(most, choice.changes), name
        if name != "relative, loose":
            assert not holds(most, choice.changes / 2), name
        if name == "relative, per size":
            assert (most > choice.changes / 2).all()


def test_the_choice_exceeds_the_bound_of_the_theorem_no_more_often_than_stated():
    rng = np.random.default_rng(2)
    for _ in range(10):
        counts = rng.poisson(rng.gamma(0.2, 40, (32, 32)))
        for name, choice in choices(counts, (1, 2, 4, 8, 16, 32), 1.0, 0.2).items():
            if name.endswith("per size"):
                continue  # the theorem needs one Δ for all sizes
            assert choice.usual_excess() <= choice.bound(0.2)
            assert choice.probability[choice.excess() > choice.bound(0.2)].sum() <= FAILURE


def test_hours_together_are_a_day_whose_users_keep_their_cells_and_the_busiest_are_in_more():
    """A user in two hours is in the cells of both; a cell of each hour is one of its own."""
    hours = [
        Counts(np.array([7, 9], "u8"), np.array([1, 4], "u8"), np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([2, 1,
        3])),
        Counts(np.array([7], "u8"), np.array([4, 6], "u8"), np.array([0, 0]), np.array([0, 1]), np.array([5, 8])),
    ]  # fmt: skip
    day = day_of(hours)
    assert (day.n_cells, day.users.tolist()) == (3, [1, 4, 6])
    of_users = list(zip(day.pair_cell.tolist(), day.users[day.pair_user].tolist(), day.samples.tolist(), strict=True))
    assert of_users == [(0, 1, 2), (1, 1, 1), (1, 4, 3), (2, 4, 5), (2, 6, 8)]


def test_a_variance_beside_the_mean_lets_a_heavy_hitter_be_dropped_at_a_larger_epsilon():
    """Its noise raises the threshold by more than its bias raises the error; where users differ, some of the cells are
    left."""
    epsilons = (0.05, 1.0, 5.0)
    alike = {name: [cells[0] for cells in by.values()] for name, by in cells_after([heavy_hitter()], epsilons).items()}
    assert alike == {"mean": [1, 12, 12], "mean and variance": [1, 1, 12]}
    uneven = cells_after([uneven_heavy_hitter(seed) for seed in range(3)], epsilons)["mean and variance"]
    assert (uneven[0.05], uneven[5.0]) == ([1, 1, 1], [12, 12, 12])
    assert 1 < max(uneven[1.0]) < 12
    counts, other = uneven_heavy_hitter(1), in_another_order(uneven_heavy_hitter(1), 2)
    of_cells = [[sorted(of.samples[of.pair_cell == cell]) for cell in range(of.n_cells)] for of in (counts, other)]
    assert of_cells[0] == of_cells[1], "in another order the pairs stay the same"
    assert other.samples.tolist() != counts.samples.tolist()
    assert cells_after([other], (0.05,)) == cells_after([counts], (0.05,))


def test_by_relative_error_a_grid_of_towns_is_chosen_worse_and_with_few_points_by_weighted_error():
    """Why the service's goal does not choose by it: the ratio is about 5, and both choices have the same draws."""
    assert min(compared(population(400_000, 64, 1), "0.2", 1) or [0]) > 1.5
    assert compared(population(20_000, 64, 1), "0.2", 1) is None


def test_a_weighted_median_is_that_of_each_group_as_often_as_its_probability_says():
    groups, often = [np.random.default_rng(4).normal(k, 1, 201) for k in range(3)], (1, 9, 10)
    repeated = np.concatenate([np.repeat(group, times) for group, times in zip(groups, often, strict=True)])
    assert weighted_median(groups, np.array(often) / 20) == np.median(repeated)


@pytest.mark.parametrize("side", [10, 20, 30])
def test_ranges_lie_in_the_box_and_have_the_area_and_shape_that_their_name_states(side):
    ranges = euler.ranges(Domain.unit_cells(side, side), 50)
    assert len(ranges) == len(euler.SHAPES) * len(euler.AREAS) + 2
    for name, query in ranges.items():
        query.require_inside(Domain.unit_cells(side, side))
        rows, columns = query.x1 - query.x0, query.y1 - query.y0
        assert min(rows.min(), columns.min()) >= 1, name
        if name not in (euler.ANY, euler.WHOLE):
            cells = float(name.split()[2]) / 100 * side**2
            # A side is a whole number of cells: the area is off by half a cell along the longer one at most.
            assert (np.abs(rows * columns - cells) <= np.maximum(0.2 * cells, np.maximum(rows, columns))).all(), name
            assert ("squares" in name) <= bool((rows == columns).all())
            assert "strips" not in name or ((rows - 1) * side < cells).all(), "one row less could not hold it"
    assert len(set(ranges["rectangles of 16 %"].x1 - ranges["rectangles of 16 %"].x0)) > 1
    assert ranges[euler.WHOLE].areas() == side**2


def test_each_further_box_is_where_most_taxis_mostly_were_apart_from_earlier_boxes(monkeypatch):
    """Of 50, 40 and 30 taxis; without a limit on what boxes share, the first would be chosen twice."""
    places = np.repeat([[0.0, 0.0], [9_000.0, 9_000.0], [-12_000.0, 3_000.0]], [50, 40, 30], axis=0)
    monkeypatch.setattr(euler, "mostly", lambda: places)
    first, *others = boxes = list(euler.boxes(3).values())
    assert first == euler.Box(0.0, 0.0)
    assert [box.holds(places).sum() for box in others] == [40, 30]
    assert max(one.shared(other) for one, other in itertools.combinations(boxes, 2)) <= euler.SHARED
    monkeypatch.setattr(euler, "SHARED", first.shared(first))
    assert list(euler.boxes(2).values())[-1].holds(places).sum() >= 90


def test_every_study_that_can_be_named_has_the_one_shape():
    for name in STUDIES:
        study = import_module(f"research.{name}")
        assert tuple(inspect.signature(study.run).parameters) == ("quick",), name


def test_the_learner_of_a_day_is_the_exact_normal_posterior_of_all_its_readings():
    """Three windows of five cells, some of which are missing, against the joint normal distribution of everything."""
    rng, v, hours = np.random.default_rng(4), {**START, "own_quiet": 2.0, "own_busy": 2.0}, (0.0, 1.0, 3.5)
    cells = np.array([h3.latlng_to_cell(30.2 + 0.03 * k, -97.7, 7) for k in range(5)])
    windows = []
    for picked, hour in zip(([0, 1, 2], [1, 2, 3, 4], [0, 2, 4]), hours, strict=True):
        n = len(picked)
        events, true, typical, covariate, users, noise = (rng.uniform(1, 30, n) for _ in range(6))
        fall = np.where(np.arange(n) < 2, 5.0, 0.0) * (hour > 0)
        columns = (events, true, typical, covariate, users, noise, rng.normal(20, 9, (n, DRAWS)), fall)
        windows.append(Window(np.array(picked), hour, *columns, scored=hour > 3))
    figures = Day(cells, windows, 1e9).filtered(v)

    def of_all(name: str) -> np.ndarray:
        return np.concatenate([getattr(window, name) for window in windows])

    which, when = of_all("cells"), np.repeat(hours, [3, 4, 3])
    at = local_kilometres(*np.array([h3.cell_to_latlng(cell) for cell in cells.tolist()]).T)[which]
    distance, apart = np.linalg.norm(at[:, None] - at, axis=2), np.abs(when[:, None] - when)
    same = which[:, None] == which
    lasting = v["field"] ** 2 * np.exp(-distance / v["length_km"]) + v["own_quiet"] ** 2 * same
    covariance = lasting * np.exp(-apart / v["memory_hours"])
    covariance += v["shared"] ** 2 * np.exp(-distance / v["shared_km"] - apart / v["shared_hours"])
    covariance += v["passing"] ** 2 * same * np.exp(-apart / v["passing_hours"])
    covariance += v["level_off"] ** 2 + v["level_drift"] ** 2 * np.minimum(when[:, None], when)
    covariance += v["effect"] ** 2 * np.outer(of_all("covariate"), of_all("covariate"))
    covariance += np.diag(v["event"] ** 2 / of_all("events") + v["user"] ** 2 / of_all("users"))

    def posterior(hour: float, read: np.ndarray, prior: float) -> tuple[np.ndarray, np.ndarray]:
        known, here = when <= hour, when == hour
        noisy = covariance + np.diag(np.square(of_all("noise")))
        gain = np.linalg.solve(noisy[np.ix_(known, known)], covariance[np.ix_(known, here)]).T
        variance = covariance[np.ix_(here, here)] - gain @ covariance[np.ix_(known, here)]
        return prior + gain @ (read[known] - prior), np.sqrt(np.diag(variance))[:, None]

    mean, deviation = posterior(3.5, of_all("read"), v["level"])
    off, share = np.abs(np.maximum(mean, 0) - windows[-1].true[:, None]), windows[-1].events / windows[-1].events.sum()
    assert figures.mae == pytest.approx(share @ off.mean(axis=1))
    assert figures.score == pytest.approx(share @ (np.log(deviation) + np.square(off / deviation) / 2).mean(axis=1))
    shown = [-posterior(hour, -of_all("fall"), 0.0)[0][:2].sum() / 10.0 for hour in hours[1:]]
    assert figures.seen == pytest.approx(shown)


@pytest.mark.nightly
def test_a_study_is_run_by_its_name_and_marked_as_quick(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["research", "papers.cdf", "--quick", "--plot", str(tmp_path)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main()
    figures = json.loads(printed.getvalue())
    assert (figures["study"], figures["quick"], round(figures["best_branching"], 1)) == ("papers.cdf", True, 16.8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["papers-cdf-band.svg", "papers-cdf.svg"]
