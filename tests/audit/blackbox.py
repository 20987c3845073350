"""Black-box audit: a lower confidence bound of ε from samples of a mechanism on two neighbouring inputs.

If a mechanism is ε-DP, P(M(x) ∈ S) <= e^ε·P(M(y) ∈ S) for every event S. Half of the samples choose an event, the
other half bound both probabilities by Clopper–Pearson, so that log(lower/upper) exceeds the true ε with probability at
most α, whatever event was chosen. A bound above the promised ε refutes the mechanism; one below proves nothing, so
``tests/planted_bugs`` plants bugs that every audit must refute.

Power, with n = 6000 samples per side (3000 tested) at α = 1e-4, for Laplace noise at ε = 1: the correct mechanism is
bounded by about 0.79; half the noise by about 1.69; an ε of 1.5 by about 1.24, each above 1 with probability > 0.999.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtri

from dpcore.noise import EntropySource, Noise

ALPHA = 1e-4
"""Chance that a correct mechanism is refuted by one audit."""
N = 6000
"""Samples per side, where an audit does not say otherwise."""
_THRESHOLDS = 200
_LARGEST_POOL = 512

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """``epsilon``: lower bound with confidence 1 − ``alpha``, from ``hits`` of ``tested`` samples on the two sides."""

    epsilon: float
    event: str
    hits: tuple[int, int]
    tested: tuple[int, int]
    alpha: float

    def __str__(self) -> str:
        p, q = (h / n for h, n in zip(self.hits, self.tested, strict=True))
        return (
            f"ε >= {self.epsilon:.3f} (event {self.event}: {self.hits[0]}/{self.tested[0]} = {p:.4f} against "
            f"{self.hits[1]}/{self.tested[1]} = {q:.4f}, α = {self.alpha:g})"
        )


def epsilon_lower_bound(one: npt.ArrayLike, other: npt.ArrayLike, alpha: float = ALPHA) -> Bound:
    """Bound ε from outputs ``one``, ``other``: shape (n,) or (n, d) numbers, rows independent, in the order drawn.

    Candidate events: above or below a threshold, or equal to a frequent value, for every column, Fisher's linear
    discriminant of all columns, and the log-likelihood ratio of independent Laplace noise on the columns or on the
    differences of neighbouring ones.
    """
    first, second = _columns(one), _columns(other)
    half = len(first) // 2, len(second) // 2
    joint = _joint_features(first[: half[0]], second[: half[1]])
    names = [*(f"column {at}" for at in range(first.shape[1])), "discriminant", "ratio", "ratio of steps"]
    candidates: list[tuple[float, int, float, str, bool]] = []
    features_one, features_two = (np.column_stack([side, *(f(side) for f in joint)]) for side in (first, second))
    for column in range(features_one.shape[1]):
        a, b = features_one[: half[0], column], features_two[: half[1], column]
        for kind, thresholds in _candidates(np.concatenate([a, b])):
            ka, kb = _hits(a, kind, thresholds), _hits(b, kind, thresholds)
            for flipped, (p, q, np_, nq) in ((False, (ka, kb, len(a), len(b))), (True, (kb, ka, len(b), len(a)))):
                scores = log_ratio(p, np_, q, nq, alpha)
                at = int(np.argmax(scores))
                candidates.append((float(scores[at]), column, float(thresholds[at]), kind, flipped))
    _, column, threshold, kind, flipped = max(candidates, key=lambda candidate: candidate[0])
    a, b = features_one[half[0] :, column], features_two[half[1] :, column]
    if flipped:
        a, b = b, a
    hits = tuple(int(_hits(side, kind, np.array([threshold]))[0]) for side in (a, b))
    bound = float(log_ratio(np.array(hits[:1]), len(a), np.array(hits[1:]), len(b), alpha)[0])
    return Bound(bound, f"{names[column]} {kind} {threshold:g}", (hits[0], hits[1]), (len(a), len(b)), alpha)


def mu_lower_bound(one: npt.ArrayLike, other: npt.ArrayLike, alpha: float = ALPHA) -> Bound:
    """Bound μ = √(2ρ) of a Gaussian mechanism from outputs as in :func:`epsilon_lower_bound`.

    The probit of no event's probability differs by more than μ between neighbours (Dong, Roth and Su 2022, Gaussian
    trade-off functions). The event is a half-space: Fisher's discriminant of the first halves, above the middle.
    """
    first, second = _columns(one), _columns(other)
    half = len(first) // 2, len(second) // 2
    direction = _discriminant(first[: half[0]], second[: half[1]])
    a, b = first @ direction, second @ direction
    threshold = (np.median(a[: half[0]]) + np.median(b[: half[1]])) / 2
    hits = tuple(int((side[h:] >= threshold).sum()) for side, h in zip((a, b), half, strict=True))
    tested = len(a) - half[0], len(b) - half[1]
    low = betaincinv(hits[0], tested[0] - hits[0] + 1, alpha / 2)
    high = betaincinv(hits[1] + 1, tested[1] - hits[1], 1 - alpha / 2)
    bound = float(ndtri(low) - ndtri(high))
    return Bound(bound, f"discriminant >= {threshold:g}", (hits[0], hits[1]), tested, alpha)


def assert_private(bound: Bound, epsilon: float) -> None:
    """The audit does not refute ``epsilon``-DP."""
    assert bound.epsilon <= epsilon, f"refuted at ε = {epsilon}: {bound}"


class Pooled(Noise):
    """The shipped noise, drawn in batches and handed out draw by draw: an audit repeats small draws thousands of times.

    Draws of one scale, and selections by one vector of costs, are independent and alike, so a batch is what as many
    calls would have drawn. ``entropy``: by default that of :class:`Noise`, which a test records.
    """

    def __init__(self, entropy: EntropySource | None = None) -> None:
        super().__init__(*([] if entropy is None else [entropy]))
        self._pools: defaultdict[Hashable, _Pool] = defaultdict(_Pool)

    def discrete_laplace(self, numerator, denominator=1, size=None):
        if size == 1 and type(numerator) is type(denominator) is int:
            return np.array([self._one((numerator, denominator))], dtype=np.int64)
        scales = np.broadcast(numerator, denominator, *([] if size is None else [np.empty(size)]))
        if scales.size > _LARGEST_POOL:
            return super().discrete_laplace(numerator, denominator, size)
        drawn = [self._one((int(t), int(s))) for t, s, *_ in scales]
        return np.array(drawn, dtype=np.int64).reshape(scales.shape)

    def _one(self, scale: tuple[int, int]) -> int:
        draw, (t, s) = super().discrete_laplace, scale
        return int(self._pools[scale].next(lambda n: draw(t, s, n)))

    def exponential(self, costs, numerator, denominator, *, offsets=None, weights=None):
        groups = 1 if offsets is None else len(offsets) - 1
        if groups > _LARGEST_POOL:
            return super().exponential(costs, numerator, denominator, offsets=offsets, weights=weights)
        select, size = super().exponential, len(costs)

        def several(n: int) -> npt.NDArray[np.int64]:
            starts = np.array([0]) if offsets is None else np.asarray(offsets[:-1])
            repeated = np.append(np.add.outer(np.arange(n) * size, starts).ravel(), n * size)
            measures = None if weights is None else np.tile(weights, n)
            drawn = select(np.tile(costs, n), numerator, denominator, offsets=repeated, weights=measures)
            return drawn.reshape(n, groups)

        parts = (None if part is None else np.asarray(part).tobytes() for part in (costs, offsets, weights))
        return self._pools[*parts, numerator, denominator].next(several)


@dataclass
class _Pool:
    """Draws of one scale. The first batch is small, because a scale that depends on a drawn range may never occur
    again.
    """

    waiting: list[Any] = field(default_factory=list)
    next_size: int = 1

    def next(self, draw: Callable[[int], npt.NDArray[np.int64]]) -> Any:
        """The next of ``draw``'s outcomes, of which it is asked for more and more."""
        if not self.waiting:
            self.waiting = list(draw(self.next_size))
            self.next_size = min(4 * self.next_size, _LARGEST_POOL)
        return self.waiting.pop()


def _columns(values: npt.ArrayLike) -> FloatArray:
    columns = np.asarray(values, dtype=np.float64)
    return columns[:, None] if columns.ndim == 1 else columns


def _joint_features(a: FloatArray, b: FloatArray) -> list[Callable[[FloatArray], FloatArray]]:
    """Functions of whole rows, fitted to the first halves; an empty list if there is only one column."""
    if a.shape[1] == 1:
        return []
    direction, steps = _discriminant(a, b), _laplace_ratio(*(np.diff(side, axis=1, prepend=0) for side in (a, b)))
    ratio = _laplace_ratio(a, b)
    return [lambda rows: rows @ direction, ratio, lambda rows: steps(np.diff(rows, axis=1, prepend=0))]


def _laplace_ratio(a: FloatArray, b: FloatArray) -> Callable[[FloatArray], FloatArray]:
    middle, other = np.median(a, axis=0), np.median(b, axis=0)
    scale = (np.abs(a - middle).mean(axis=0) + np.abs(b - other).mean(axis=0)) / 2
    weight = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    return lambda rows: (np.abs(rows - other) - np.abs(rows - middle)) @ weight


def _discriminant(a: FloatArray, b: FloatArray) -> FloatArray:
    """Direction that separates the two sides best if their noise has one covariance; robust against heavy tails."""
    centred = np.concatenate([a - np.median(a, axis=0), b - np.median(b, axis=0)])
    covariance = np.atleast_2d(np.cov(centred, rowvar=False))
    return np.linalg.pinv(covariance, rcond=1e-9) @ (np.median(a, axis=0) - np.median(b, axis=0))


def _candidates(pooled: FloatArray) -> list[tuple[str, FloatArray]]:
    distinct, count = np.unique(pooled, return_counts=True)
    inner = distinct if len(distinct) <= _THRESHOLDS else np.quantile(pooled, np.linspace(0.002, 0.998, _THRESHOLDS))
    frequent = distinct[count >= 0.01 * len(pooled)]
    return [(">=", inner), ("<=", inner)] + ([("==", frequent)] if len(frequent) else [])


def _hits(values: FloatArray, kind: str, thresholds: FloatArray) -> npt.NDArray[np.int64]:
    ordered = np.sort(values)
    below = np.searchsorted(ordered, thresholds, side="left")
    up_to = np.searchsorted(ordered, thresholds, side="right")
    return {">=": len(values) - below, "<=": up_to, "==": up_to - below}[kind]


def log_ratio(
    k_one: npt.NDArray[np.int64], n_one: int, k_two: npt.NDArray[np.int64], n_two: int, alpha: float
) -> FloatArray:
    """log(lower bound of p_one / upper bound of p_two), Clopper–Pearson at α/2 each."""
    low = np.where(k_one > 0, betaincinv(np.maximum(k_one, 1), n_one - k_one + 1, alpha / 2), 0.0)
    high = np.where(k_two < n_two, betaincinv(k_two + 1, np.maximum(n_two - k_two, 1), 1 - alpha / 2), 1.0)
    with np.errstate(divide="ignore"):
        return np.log(low) - np.log(high)
