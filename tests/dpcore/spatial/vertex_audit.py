"""A black-box audit of Euler histograms at the users who change them most: their regions all cover one vertex of the
grid."""

import math

import numpy as np
from scipy.stats import beta

from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.spatial.declared import declared_regions
from dpcore.spatial.euler import Euler
from tests.dpcore.spatial.polygons import grid

USERS_PER_SIDE = 200
AUDIT_ALPHA = 1e-4


def epsilon_lower_bound(euler: Euler, epsilon: float, fits: int, *, copies: int = 1) -> float:
    """Lower bound of ε at confidence 1 − 2·AUDIT_ALPHA from ``fits`` times 40 000 trials of a user present or absent.

    Each user declares ``copies`` times a diamond around a vertex of their own. Disjoint 2 × 2 blocks with a margin are
    independent trials: the noise is. The event "all nine components of the vertex are at least the copies" has the
    largest likelihood ratio there is, e^ε exactly where the whole sensitivity is used.
    """
    domain = grid(3 * USERS_PER_SIDE, 3 * USERS_PER_SIDE)
    corner = np.arange(USERS_PER_SIDE) * 3 + 1.0
    x, y = (c.ravel() for c in np.meshgrid(corner, corner, indexing="ij"))
    diamonds = np.stack([x, y], axis=1)[:, None, :] + np.array([(-0.3, 0), (0.3, 0), (0, -0.3), (0, 0.3)])
    user = np.repeat(np.arange(len(diamonds)), copies)
    present = declared_regions(list(diamonds[user]), user, diameter=1.0, per_user=euler.regions_per_user).regions
    hits = []
    for regions in (present, declared_regions([], [], diameter=1.0).regions):
        drawn = [euler.fit(regions, domain, round(epsilon * MICRO), Noise()).components for _ in range(fits)]
        blocks = [[h[a::6, b::6][:USERS_PER_SIDE, :USERS_PER_SIDE] for a in range(3) for b in range(3)] for h in drawn]
        hits.append(sum(int((np.stack(nine) >= copies).all(axis=0).sum()) for nine in blocks))
    trials = fits * USERS_PER_SIDE**2
    low = beta.ppf(AUDIT_ALPHA, hits[0], trials - hits[0] + 1)
    high = beta.ppf(1 - AUDIT_ALPHA, hits[1] + 1, trials - hits[1])
    return math.log(low / high)
