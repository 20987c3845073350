"""The plan under relation "values" with zCDP: discrete Gaussian noise, each user's allowance shared by exact loss.

To be proved: the charges of a window are never below any user's loss in ρ, and depend only on public counts, earlier
releases, the terms and that user's own ledger. Proof: scales and charges are those of
:mod:`dpcore.gaussian_allocation`, whose sensitivities are public; ranges of residual clipping are computed from the
memory, which is computed from earlier releases (:mod:`dpcore.residual`). Tested: forced transcripts over three windows
in ``tests/audit/test_values_zcdp_audit.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpcore.allocation import Sensitivities, stack
from dpcore.arrays import FloatArray, IntArray
from dpcore.contributions import Counts
from dpcore.errors import BudgetError
from dpcore.gaussian import gaussian_half_width
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from dpcore.residual import ResidualMean
from dpcore.resolution import regroup
from stream.statistics.merging import merge_hexagons
from stream.statistics.plan import Allowance, Due, Plan, ValuesPart, counts_digest
from stream.statistics.residual_clipping import Ranges, ranges_of
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.cell_statistics import CellStatistic, cell_statistics
from stream.terms import QUANTUM, SpeedTerms


def plan_gaussian(
    counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
) -> Plan:
    """Who takes part, the noise scales and every user's charge, in nρ.

    First come: a user takes part whose whole grant, and what histograms ask, is left, and may spend the grant. Rolling:
    everybody may spend what ``allowance.left`` says (:func:`stream.statistics.pacing.spendable`), and takes part if
    that pays for their numbers.
    """
    terms, privacy = due.terms, due.terms.privacy
    granted = allowance.left if privacy.rolling else np.where(allowance.left >= terms.window_grant, privacy.grant, 0)
    merged = merge_hexagons(
        _admitted(counts, granted, terms.speed),
        terms.hexagons,
        lambda pooled: _half_width(pooled, granted, terms.speed),
    )
    if merged is not None:
        counts = regroup(counts, merged)
    kept = _admitted(counts, granted, terms.speed)
    ranges = None
    if terms.speed.clips:
        noise = _mean_noise(kept, granted, terms.speed)
        ranges = ranges_of(counts, noise, due, memory)
    program = _program(kept, terms.speed, ranges)
    allocation = allocate_gaussian(program, np.maximum(granted, _NOBODY))
    charges = exact_rho_charges(program, allocation.numerator, allocation.denominator)
    if np.any(charges > granted):
        raise BudgetError("the charges of the allocated scales exceed an allowance; nothing may be released with them")
    if terms.histogram is not None:
        charges = np.where(granted > 0, privacy.grant + asked, 0)
    return Plan(
        due=due,
        budget=allowance.budget,
        cells=counts.cells,
        users=counts.users,
        charges=charges,
        retained=kept.samples,
        numerators=allocation.numerator,
        denominators=allocation.denominator,
        counts_digest=counts_digest(counts),
        values=ValuesPart(
            published=counts.by_cell(kept.samples) > 0,
            merged=merged,
            lower=None if ranges is None else ranges.lower,
            upper=None if ranges is None else ranges.upper,
            foretold=None if ranges is None else ranges.foretold,
        ),
    )


_NOBODY = 2
"""nρ that stand for the allowance of users who have next to nothing left, and enter no number."""


def _admitted(counts: Counts, granted: IntArray, speed: SpeedTerms) -> Counts:
    """``counts`` with the samples of those users alone whose grant pays 2 nρ for each number they enter, in cells of
    enough users."""
    numbers = counts.by_user(np.ones(len(counts.samples), dtype=np.int64)) * len(speed.statistics)
    samples = np.where((granted >= 2 * numbers)[counts.pair_user], counts.samples, 0)
    contributors = counts.by_cell((samples > 0).astype(np.int64))
    return replace(counts, samples=np.where(contributors[counts.pair_cell] >= speed.min_users, samples, 0))


def _program(kept: Counts, speed: SpeedTerms, ranges: Ranges | None = None) -> Sensitivities:
    """Rows of every statistic of every cell, statistic-major, in the order in which scales are drawn."""
    statistics: dict[str, CellStatistic | ResidualMean] = {**cell_statistics(speed.statistics, speed, None)}
    if ranges is not None:
        statistics["mean"] = ResidualMean(*ranges.ends, speed.upper_quanta, ranges.gain)
    return stack([statistic.rows(kept, kept.samples) for statistic in statistics.values()])


def _mean_noise(kept: Counts, granted: IntArray, speed: SpeedTerms) -> FloatArray:
    """Standard deviation of each cell's noise of the mean without clipping, in quanta; infinite if not released."""
    program = _program(kept, speed)
    allocation = allocate_gaussian(program, np.maximum(granted, _NOBODY))
    sigma, samples = allocation.scales[: kept.n_cells], kept.by_cell(kept.samples)  # the mean comes first
    return np.where(samples > 0, sigma / np.maximum(samples, 1), np.inf)


def _half_width(pooled: Counts, granted: IntArray, speed: SpeedTerms) -> FloatArray:
    """Predicted half width of each cell's 95 % interval, km/h, without clipping; infinite without samples."""
    noise = _mean_noise(pooled, granted, speed)
    return np.asarray(noise * float(gaussian_half_width(2**20)) / 2**20 * QUANTUM)
