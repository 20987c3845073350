"""Records the integers and scales that the shipped draw of relation "participation" passes to its source of noise."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpcore import participation
from dpcore.contributions import Contributions
from dpcore.noise import Noise
from stream.statistics.plan import Plan
from tests.support.releasing import draw


@dataclass
class Observation:
    """``integers``: (R, C), the numbers to which noise was added. ``t``/``s``: (R, C), the scales that the draw
    requested.
    """

    gaussian: bool = False
    integers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    t: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    s: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class _Added(np.ndarray):
    """Noise of 0 that records the integers to which it is added, and refuses any other use."""

    observation: Observation

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **_: Any) -> Any:
        assert ufunc is np.add, f"the noise was changed by {ufunc.__name__} after it was drawn"
        assert method == "__call__"
        (exact,) = (value for value in inputs if not isinstance(value, _Added))
        observation = next(value for value in inputs if isinstance(value, _Added)).observation
        assert not observation.integers.size, "noise was added twice"
        observation.integers = np.array(exact)
        return np.array(exact)


class _Observing(Noise):
    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation

    def asked(self, numerator: Any, denominator: Any, gaussian: bool) -> np.ndarray:
        t, s = np.broadcast_arrays(np.asarray(numerator), np.asarray(denominator))
        self.observation.t, self.observation.s, self.observation.gaussian = t.copy(), s.copy(), gaussian
        silent = np.zeros(t.shape, dtype=np.int64).view(_Added)
        silent.observation = self.observation
        return silent

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        assert size is None
        return self.asked(numerator, denominator, gaussian=False)


@contextmanager
def gaussians_observed() -> Iterator[None]:
    """While the block runs, Gaussian draws from an observing noise are 0 and are recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(participation, "discrete_gaussian", lambda noise, t, s: noise.asked(t, s, gaussian=True))
        yield


def observe(plan: Plan, contributions: Contributions) -> Observation:
    """Run the shipped draw of the window and return what it passed to its noise."""
    observation = Observation()
    with gaussians_observed():
        draw(plan, contributions, _Observing(observation))
    assert observation.integers.shape == observation.t.shape, "some number was released without noise"
    assert observation.gaussian == (plan.gaussian)
    return observation


def loss_between(one: Observation, two: Observation) -> Fraction:
    """Loss between two windows: Σ|Δ|·s/t in ε, under Gaussian noise ΣΔ²·s²/(2t²) in ρ. Their noise must be the same."""
    assert np.array_equal(one.t, two.t), "the scales tell who was there"
    assert np.array_equal(one.s, two.s), "the scales tell who was there"
    moved = one.integers - two.integers
    total = Fraction(0)
    for at in zip(*np.nonzero(moved), strict=True):
        d, t, s = int(moved[at]), int(one.t[at]), int(one.s[at])
        total += Fraction(d * d * s * s, 2 * t * t) if one.gaussian else Fraction(abs(d) * s, t)
    return total
