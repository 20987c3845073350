"""Exact laws of single-cell mechanisms by enumeration of every path of their private choices and every released number.

The mechanism runs unchanged. Its source of noise returns every possible choice in turn, and multiplies the
probabilities of the choices on each path. A reader who sees the width of the noise and the noisy integer sees at least
as much as any release shows. Probabilities are floats, correct to about 1e-12.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpcore.noise import Noise

FloatArray = npt.NDArray[np.float64]
TOLERANCE = 1e-9
"""Rounding of the enumeration, in ε."""


class Path(Noise):
    """Follows one path: the given choices, then always choice 0."""

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self.choices = choices
        self.options: list[int] = []
        self.probability = 1.0
        self.scale: tuple[int, int] = (0, 1)

    def _choose(self, probabilities: FloatArray) -> int:
        at, possible = len(self.options), np.flatnonzero(probabilities)
        self.options.append(len(possible))
        chosen = int(possible[self.choices[at] if at < len(self.choices) else 0])
        self.probability *= float(probabilities[chosen])
        return chosen

    def exponential(
        self, costs: Any, numerator: int, denominator: int, *, offsets: Any = None, weights: Any = None
    ) -> Any:
        """Return the path's next choice for each selection that the mechanism makes."""
        bounds = [0, len(costs)] if offsets is None else offsets
        measure = np.ones(len(costs)) if weights is None else np.asarray(weights, dtype=np.float64)
        law = measure * np.exp(-np.asarray(costs) * (numerator / denominator))
        groups = [law[a:b] / law[a:b].sum() for a, b in itertools.pairwise(bounds)]
        return np.array([self._choose(group) for group in groups])

    def below(self, bound: Any, size: int | None = None) -> Any:
        """Return the path's next choice for each uniform integer that the mechanism draws."""
        return np.array([self._choose(np.full(int(b), 1 / int(b))) for b in np.atleast_1d(bound)])

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        """Return 0: the law of the noise is known and is applied afterwards."""
        self.scale = int(numerator), int(denominator)
        return np.zeros(1, dtype=np.int64)


def paths(draw: Callable[[Path], Any]) -> Iterator[tuple[Path, Any]]:
    """Every path through the choices that ``draw`` makes, each with its result."""
    choices: list[int] | None = []
    while choices is not None:
        path = Path(choices)
        yield path, draw(path)
        choices = _next(path)


Law = dict[tuple[Any, ...], dict[int, float]]
"""What a reader sees beside the noisy integer (noise scale, bounds) -> integer before noise -> probability."""


@dataclass(frozen=True)
class Enumerated:
    """A mechanism with a plan; ``unit``: released value per integer."""

    release: Callable[[Any, Noise], Any]
    unit: float

    def law(self, values: Any) -> Law:
        """Exact law of the release of ``values``."""
        law: Law = {}
        for path, drawn in paths(lambda source: self.release(values, source)):
            key = (path.scale, drawn.scale, drawn.bias_bound)
            statistic = round(drawn.raw / self.unit)
            row = law.setdefault(key, {})
            row[statistic] = row.get(statistic, 0.0) + path.probability
        total = sum(sum(row.values()) for row in law.values())
        assert abs(total - 1) < TOLERANCE, "the paths do not add up to a law"
        return law

    def loss(self, one: Law, other: Law) -> float:
        """Largest |log ratio| of the two laws over all outputs."""
        worst = 0.0
        for key in one.keys() | other.keys():
            if key not in one or key not in other:
                return np.inf
            (t, s), a, b = key[0], one[key], other[key]
            if t == 0:
                worst = max(worst, np.inf if a.keys() != b.keys() else max(abs(np.log(a[x] / b[x])) for x in a))
                continue
            # Beyond the extreme integers both tails fall at the same rate, so the ratio of the laws no longer changes.
            seen = np.arange(min(*a, *b) - 1, max(*a, *b) + 2)
            sides = []
            for row in (a, b):
                far = np.abs(seen[:, None] - np.array(list(row))[None, :])
                sides.append(np.exp(-far * (s / t)) @ np.array(list(row.values())))
            worst = max(worst, float(np.abs(np.log(sides[0] / sides[1])).max()))
        return worst


def _next(path: Path) -> list[int] | None:
    """The next path in order, or None after the last."""
    taken = (path.choices + [0] * len(path.options))[: len(path.options)]
    while taken:
        taken[-1] += 1
        if taken[-1] < path.options[len(taken) - 1]:
            return taken
        taken.pop()
    return None
