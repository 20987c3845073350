"""What the papers' benchmark computes itself: bounds that hold for the noise as it is, and what one point can
change."""

import contextlib
import inspect
import io
import json
from collections.abc import Iterable
from importlib import import_module

import numpy as np
import pytest

from dpcore.contributions import Counts
from dpcore.spatial import Domain, E2EPriv, Rectangles
from dpcore.spatial.e2epriv import Objective
from research.__main__ import STUDIES, main
from research.papers.bounds import FAILURE, of_components, of_sum
from research.papers.choice import choices
from research.papers.recorded_hour import day_of
from research.papers.suppression import cells_after, heavy_hitter, uneven_heavy_hitter


def law_of_sum(scale: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of the sum of ``draws`` discrete Laplace variables, by Fourier inversion."""
    reach = int(40 * scale * max(draws, 4) ** 0.5)
    values = np.arange(-reach, reach + 1)
    single = np.exp(-np.abs(values) / scale)
    transformed = np.fft.fft(np.fft.ifftshift(single / single.sum()))
    return values, np.fft.fftshift(np.fft.ifft(transformed**draws).real)


@pytest.mark.parametrize("draws", [1, 2, 9, 100, 1521])
@pytest.mark.parametrize("scale", [1.0, 9.0, 81.0])
def test_the_noise_of_a_sum_stays_within_its_bound_and_not_within_a_quarter_of_it(scale, draws):
    values, probability = law_of_sum(scale, draws)
    bound = of_sum(scale, draws)
    assert probability[np.abs(values) > bound].sum() <= FAILURE
    assert probability[np.abs(values) > bound / 4].sum() > FAILURE


@pytest.mark.parametrize("components", [1, 49, 1521])
@pytest.mark.parametrize("scale", [1.0, 9.0, 81.0])
def test_no_component_leaves_its_bound_more_often_than_stated_and_half_of_it_would_not_do(scale, components):
    values, probability = law_of_sum(scale, 1)

    def fails(bound: float) -> float:
        return float(1 - (1 - probability[np.abs(values) > bound].sum()) ** components)

    assert fails(of_components(scale, components)) <= FAILURE < fails(of_components(scale, components) / 2)


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


def test_every_study_that_can_be_named_has_the_one_shape():
    for name in STUDIES:
        study = import_module(f"research.{name}")
        assert tuple(inspect.signature(study.run).parameters) == ("quick",), name


@pytest.mark.nightly
def test_a_study_is_run_by_its_name_and_marked_as_quick(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["research", "papers.cdf", "--quick", "--plot", str(tmp_path)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main()
    figures = json.loads(printed.getvalue())
    assert (figures["study"], figures["quick"], round(figures["best_branching"], 1)) == ("papers.cdf", True, 16.8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["papers-cdf-band.svg", "papers-cdf.svg"]
