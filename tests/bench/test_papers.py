"""What the papers' benchmark computes itself: bounds that hold for the noise as it is, and what one point can change."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers.bounds import FAILURE, of_components, of_sum
from bench.papers.choice import choices
from dpcore.spatial import Domain, E2EPriv, Rectangles


def law_of_sum(scale: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and probabilities of the sum of ``draws`` discrete Laplace variables, by Fourier inversion."""
    reach = int(40 * scale * max(draws, 4) ** 0.5)
    values = np.arange(-reach, reach + 1)
    single = np.exp(-np.abs(values) / scale)
    transformed = np.fft.fft(np.fft.ifftshift(single / single.sum()))
    return values, np.fft.fftshift(np.fft.ifft(transformed**draws).real)


@pytest.mark.parametrize("draws", [1, 2, 9, 100, 1521])
@pytest.mark.parametrize("scale", [1.0, 9.0, 81.0])
def test_the_noise_of_a_sum_stays_within_its_bound_and_not_within_a_quarter_of_it(scale: float, draws: int) -> None:
    values, probability = law_of_sum(scale, draws)
    bound = of_sum(scale, draws)
    assert probability[np.abs(values) > bound].sum() <= FAILURE
    assert probability[np.abs(values) > bound / 4].sum() > FAILURE


@pytest.mark.parametrize("components", [1, 49, 1521])
@pytest.mark.parametrize("scale", [1.0, 9.0, 81.0])
def test_no_component_leaves_its_bound_more_often_than_stated_and_half_of_it_would_not_do(
    scale: float, components: int
) -> None:
    values, probability = law_of_sum(scale, 1)

    def fails(bound: float) -> float:
        return float(1 - (1 - probability[np.abs(values) > bound].sum()) ** components)

    assert fails(of_components(scale, components)) <= FAILURE < fails(of_components(scale, components) / 2)


def test_one_point_changes_no_error_by_more_than_what_each_choice_divides_by() -> None:
    """Every cell of random grids of 16 × 16 gets one point more; a division by a tenth of the change is noticed."""
    rng, sizes = np.random.default_rng(1), (1, 2, 4, 8)
    counts = rng.poisson(rng.gamma(0.3, 5, (16, 16)))
    divided = {name: choice.changes for name, choice in choices(counts, sizes, 1.0, 0.2).items()}
    corners = np.sort(rng.integers(0, 16, (600, 2, 2)), axis=1)
    queries = Rectangles.of_cells(corners.transpose(0, 2, 1).reshape(-1, 4))
    total, worst = int(counts.sum()), {"weighted": np.zeros(4), "relative": np.zeros(4)}
    mechanism = E2EPriv(sizes, queries, expected_points=total)
    domain = Domain.unit_cells(16, 16)
    before = {name: mechanism.errors(counts, domain, 1.25, total, name)[0] for name in worst}  # type: ignore[arg-type]
    for cell in np.ndindex(16, 16):
        more = counts.copy()
        more[cell] += 1
        for name in worst:
            changed = mechanism.errors(more, domain, 1.25, total, name)[0]  # type: ignore[arg-type]
            worst[name] = np.maximum(worst[name], np.abs(changed - before[name]))
    for name, changes in divided.items():
        assert (worst[name.split(",")[0]] <= changes * (1 + 1e-9)).all(), name
        assert (worst[name.split(",")[0]] > changes / 100).any(), name


def test_the_choice_exceeds_the_bound_of_the_theorem_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(2)
    for _ in range(10):
        counts = rng.poisson(rng.gamma(0.2, 40, (32, 32)))
        for name, choice in choices(counts, (1, 2, 4, 8, 16, 32), 1.0, 0.2).items():
            if name == "relative, per size":
                continue  # the theorem needs one Δ for all sizes
            assert choice.usual_excess() <= choice.bound(0.2)
            assert choice.probability[choice.excess() > choice.bound(0.2)].sum() <= FAILURE
