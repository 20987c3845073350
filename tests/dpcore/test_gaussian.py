"""Discrete Gaussian noise has exactly the stated law; a wrong scale, the bare proposal and a rounded normal are
caught."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpcore.errors import ParameterError
from dpcore.gaussian import discrete_gaussian, gaussian_half_width
from dpcore.noise import Noise

N = 200_000
"""Samples per test. A scale off by 1 % moves the variance by more than 6 standard errors (power > 0.9 at α)."""
ALPHA = 1e-6
"""False alarm rate of each test, two-sided."""
SCALES = [(1, 1), (3, 7), (1, 5), (7, 3), (50, 1), (65_000, 1), (2**32 + 1, 2**20)]


def law(t: int, s: int) -> tuple[np.ndarray, np.ndarray]:
    """Support and probabilities, from the sum itself."""
    sigma = t / s
    x = np.arange(-int(12 * sigma) - 12, int(12 * sigma) + 13)
    mass = np.exp(-0.5 * (x / sigma) ** 2)
    return x, mass / mass.sum()


def p_value(samples: np.ndarray, t: int, s: int) -> float:
    """χ² of binned samples against the exact law, bins of expected count >= 50, the rest pooled."""
    x, mass = law(t, s)
    cumulative = np.cumsum(mass)
    edges = np.unique(np.searchsorted(cumulative, np.linspace(0.002, 0.998, 80)))
    probability = np.diff(np.concatenate([[0.0], cumulative[edges], [1.0]]))
    observed = np.histogram(samples, bins=[-(2**62), *(x[edges] + 0.5).tolist(), 2**62])[0]
    keep = probability * len(samples) >= 50
    observed = np.append(observed[keep], observed[~keep].sum())
    expected = np.append(probability[keep], probability[~keep].sum()) * len(samples)
    used = expected > 0
    return float(stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), max(used.sum() - 1, 1)))


@pytest.mark.parametrize(("t", "s"), SCALES)
def test_discrete_gaussian_has_its_exact_distribution(t: int, s: int) -> None:
    assert p_value(discrete_gaussian(Noise(), t, s, N), t, s) > ALPHA


@pytest.mark.parametrize(
    "bug", ["half scale", "proposal only", "laplace of the same variance", "one sided", "1 % short"]
)
def test_a_planted_bug_in_the_sampler_is_caught(bug: str) -> None:
    noise = Noise()
    broken: dict[str, Callable[[], np.ndarray]] = {
        "half scale": lambda: discrete_gaussian(noise, 7, 6, N),
        "proposal only": lambda: noise.discrete_laplace(7, 3, N),
        "laplace of the same variance": lambda: noise.discrete_laplace(7_000_000, 4_242_641, N),
        "one sided": lambda: np.abs(discrete_gaussian(noise, 7, 3, N)),
        "1 % short": lambda: discrete_gaussian(noise, 693, 300, 4 * N),
    }
    assert p_value(broken[bug](), 7, 3) < ALPHA


def test_a_column_of_scales_gives_each_entry_its_own() -> None:
    scales = np.array([1, 10, 100, 1000])
    drawn = discrete_gaussian(Noise(), np.repeat(scales, 50_000)).reshape(4, -1)
    for row, t in zip(drawn, scales.tolist(), strict=True):
        assert p_value(row, t, 1) > ALPHA
    assert discrete_gaussian(Noise(), np.ones((2, 3), dtype=int), 4).shape == (2, 3)
    assert discrete_gaussian(Noise(), 5, 1, 0).shape == (0,)


@pytest.mark.false_alarm(1.1e-4)
def test_opendp_draws_from_the_same_distribution() -> None:
    """n = 20 000 of theirs, fresh in every run, α = 1e-6 twice: against the exact law, and against ours by two samples.

    A scale 10 % off fails the first with power above 1 - 1e-6, the second, at 1e-3, with power 0.9999.
    """
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    theirs = np.array(opendp.m.make_gaussian(*space, scale=20.0)([0] * 20_000))
    assert p_value(theirs, 20, 1) > ALPHA
    assert p_value(theirs, 22, 1) < ALPHA
    assert stats.ks_2samp(theirs, discrete_gaussian(Noise(), 20, 1, N)).pvalue > ALPHA
    assert stats.ks_2samp(theirs, discrete_gaussian(Noise(), 22, 1, N)).pvalue < 1e-3


def test_entropy_decides_everything() -> None:
    def tape(seed: int) -> Noise:
        return Noise(np.random.default_rng(seed).bytes)

    assert (discrete_gaussian(tape(1), 50, 1, 1000) == discrete_gaussian(tape(1), 50, 1, 1000)).all()
    assert (discrete_gaussian(tape(1), 50, 1, 1000) != discrete_gaussian(tape(2), 50, 1, 1000)).any()


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.9875, 0.999])
def test_intervals_are_the_smallest_that_hold_their_confidence(confidence: float) -> None:
    for t, s in [*SCALES, (31, 1), (32, 1), (33, 1), (100, 1), (1237, 3), (9999, 1)]:
        x, mass = law(t, s)
        w = float(gaussian_half_width(t, s, confidence))
        assert mass[np.abs(x) <= w].sum() >= confidence - 1e-9
        assert w == 0 or mass[np.abs(x) <= w - 1].sum() < confidence + 1e-9
    assert gaussian_half_width(np.array([[1, 2**40], [50, 1]])).shape == (2, 2)


def test_parameters_out_of_bounds_are_refused_with_a_remedy() -> None:
    for t, s in [(0, 1), (2**40 + 1, 1), (1, 0), (-1, 1)]:
        with pytest.raises(ParameterError):
            discrete_gaussian(Noise(), t, s, 1)
    with pytest.raises(ParameterError):
        gaussian_half_width(1, 1, 1.0)
