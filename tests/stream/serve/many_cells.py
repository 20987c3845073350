"""Which differences of a window the dashboard may colour, computed from released numbers: Benjamini and Hochberg
(1995)."""

import math

LAPLACE = 2.12
"""Standard deviations of a sum of independent Laplace noise within which at least 95 % of it lies."""
FALSE_SHARE = 0.05


def of_two_days(difference: float, now: float, then: float) -> float:
    """P(|X + Y| > \\|difference\\|) of independent Laplace noise of these scales, 1 within the 95 % error."""
    size = abs(difference)
    if size <= LAPLACE * math.sqrt(2) * math.hypot(now, then):
        return 1.0
    s, t = max(now, then), min(now, then)
    if s - t < 1e-3 * s:
        return math.exp(-size / s) * (1 + size / (2 * s))
    return (s**2 * math.exp(-size / s) - t**2 * math.exp(-size / t)) / (s**2 - t**2)


def clear(chances: dict[str, float], cells: int) -> set[str]:
    """Those of the ``cells`` cells whose differences noise does not explain."""
    ordered = sorted(chances, key=chances.__getitem__)
    last = max((k for k, cell in enumerate(ordered, 1) if chances[cell] <= FALSE_SHARE * k / cells), default=0)
    return set(ordered[:last])
