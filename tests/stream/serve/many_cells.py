"""Which differences of a window the dashboard may colour, computed from released numbers: Benjamini and Hochberg
(1995)."""

from __future__ import annotations

import math

LAPLACE = 2.12
"""Standard deviations of a sum of independent Laplace noise within which at least 95 % of it lies."""
FALSE_SHARE = 0.05
TILTS = (0.5, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97)


def of_two_days(difference: float, now: float, then: float) -> float:
    """P(|X + Y| > \\|difference\\|) of independent Laplace noise of these scales, 1 within the 95 % error."""
    size = abs(difference)
    if size <= LAPLACE * math.sqrt(2) * math.hypot(now, then):
        return 1.0
    s, t = max(now, then), min(now, then)
    if s - t < 1e-3 * s:
        return math.exp(-size / s) * (1 + size / (2 * s))
    return (s**2 * math.exp(-size / s) - t**2 * math.exp(-size / t)) / (s**2 - t**2)


def of_usual(difference: float, now: float, deviation: float) -> float:
    """Bound on the same of Laplace noise of scale ``now`` and of a mean whose noise has that ``deviation``, if it is
    narrower."""
    size, rest = abs(difference), deviation / math.sqrt(2)
    if size <= LAPLACE * math.hypot(now * math.sqrt(2), deviation):
        return 1.0
    widest = max(now, rest)
    bounds = [
        2 * math.exp(-tilt * size / widest) / (1 - (tilt * now / widest) ** 2) / (1 - (tilt * rest / widest) ** 2)
        for tilt in TILTS
    ]
    return min(1.0, *bounds, math.exp(-size / now) / (1 - (rest / now) ** 2) if rest < now else 1.0)


def clear(chances: dict[str, float], cells: int) -> set[str]:
    """Those of the ``cells`` cells whose differences noise does not explain."""
    ordered = sorted(chances, key=chances.__getitem__)
    last = max((k for k, cell in enumerate(ordered, 1) if chances[cell] <= FALSE_SHARE * k / cells), default=0)
    return set(ordered[:last])
