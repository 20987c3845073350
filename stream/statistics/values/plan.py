"""The plan under relation "values", where counts are public and only measured values are protected.

It depends only on public counts, the terms and the ledger.

Noise scales and charges for given retained samples follow from one of two strategies. *Allocated*: a convex program
(:mod:`dpcore.allocation`) shares every user's allowance over all cells and statistics. *Single-cell*: a mechanism of
:mod:`dpcore.single_cell` releases each mean at one ε per cell; the other statistics are allocated what its charges
left. With zCDP noise is discrete Gaussian, and each user's allowance is shared by exact loss.

To be proved: the charges of a window are never below any user's loss in ρ, and depend only on public counts, earlier
releases, the terms and that user's own ledger. Proof: scales and charges are those of
:mod:`dpcore.gaussian_allocation`, whose sensitivities are public; ranges of residual clipping are computed from the
memory, which is computed from earlier releases (:mod:`dpcore.residual`). Tested: forced transcripts over three windows
in ``tests/audit/test_values_audit.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpcore.allocation import Allocation, Sensitivities, allocate, stack, uniform_allocation
from dpcore.arrays import BoolArray, FloatArray, IntArray
from dpcore.cdf import ONE_SIDED
from dpcore.contributions import Counts
from dpcore.errors import BudgetError
from dpcore.gaussian import gaussian_half_width
from dpcore.gaussian_allocation import allocate_gaussian, exact_rho_charges
from dpcore.mean import clipping_bias, sum_caps
from dpcore.resolution import regroup
from dpcore.scales import LaplaceScales
from dpcore.suppression import STATISTICS, sweep_chop_user
from stream.statistics.columns import CDF, only_for_itself
from stream.statistics.merging import merge_hexagons, widths
from stream.statistics.plan import Allowance, Due, Plan, ValuesPart, counts_digest
from stream.statistics.residual_clipping import Ranges, ranges_of
from stream.statistics.smoothing_state import Memory
from stream.statistics.values.cell_statistics import (
    CellStatistics,
    cell_epsilon,
    cell_mechanism,
    cell_statistics,
    plan_cell_means,
    planned_statistics,
    scales_by_statistic,
)
from stream.terms import QUANTUM, SpeedTerms, Terms


@dataclass(frozen=True)
class PublicWindow:
    """What a decision may depend on. ``admitted``: samples (P,) of users who take part. ``caps``: most that one user
    adds to Σx of each cell, (C,). ``allowances``: µε that each user may lose by speed in this window, (L,).
    """

    counts: Counts
    admitted: IntArray
    speed: SpeedTerms
    caps: IntArray | None
    allowances: IntArray
    ranges: Ranges | None = None

    @property
    def allowance(self) -> int:
        """The one allowance of all users, where grants do not roll; 0 without users."""
        return int(self.allowances.max(initial=0))

    def statistics(self, names: Sequence[str]) -> CellStatistics:
        """The statistics behind the released ``names``."""
        return cell_statistics(names, self.speed, self.caps, self.ranges)


@dataclass(frozen=True)
class Decision:
    """One candidate plan: retained samples (P,), flat scales, charges (L,), and its predicted error in full ranges."""

    retained: IntArray
    scales: LaplaceScales
    charges: IntArray
    mean_epsilon_micro: int
    error: float


def decide(window: PublicWindow, retained: IntArray) -> Decision:
    """Scales and charges for ``retained`` samples (P,), by the strategy of the terms."""
    if window.speed.mean_mechanism != "allocated" and "mean" in window.speed.statistics:
        return decide_single_cell(window, retained)
    statistics = window.statistics(window.speed.statistics)
    scales, charges = allocated(window, retained, window.allowances, statistics)
    return Decision(retained, scales, charges, 0, predicted_error(window, retained, scales, statistics))


def decide_single_cell(window: PublicWindow, retained: IntArray) -> Decision:
    """Means by the terms' single-cell mechanism at one ε per cell, the other statistics allocated what is left."""
    counts, speed, allowances = window.counts, window.speed, window.allowances
    epsilon = cell_epsilon(counts, retained, window.allowance // len(window.statistics(window.speed.statistics)))
    charges, of_means = plan_cell_means(cell_mechanism(speed), counts, retained, epsilon)
    total, kept = counts.by_cell(window.admitted), counts.by_cell(retained)
    error = float((total * np.minimum(of_means / speed.upper_quanta + clipping_bias(total, kept), 1.0)).sum())
    scales = LaplaceScales(np.zeros(counts.n_cells, np.int64), np.ones(counts.n_cells, np.int64))
    others = window.statistics([name for name in window.speed.statistics if name != "mean"])
    if others:
        rest, more = allocated(window, retained, allowances - charges, others)
        error += predicted_error(window, retained, rest, others)
        charges = charges + more
        scales = LaplaceScales(
            np.append(scales.numerator, rest.numerator), np.append(scales.denominator, rest.denominator)
        )
    if np.any(charges > allowances):
        raise BudgetError("the charges of the single-cell means exceed a window's grant; nothing may be released")
    return Decision(retained, scales, charges, epsilon, error)


def program_of(counts: Counts, retained: IntArray, statistics: CellStatistics) -> Sensitivities:
    """Rows of every statistic of every cell, statistic-major, in the order in which scales are drawn."""
    return stack([statistic.rows(counts, retained) for statistic in statistics.values()])


def solve(
    counts: Counts, retained: IntArray, allowances: IntArray, statistics: CellStatistics, speed: SpeedTerms
) -> Allocation:
    """The program of ``statistics``, solved as the terms say: scales whose exact charges are within the allowances."""
    solver = allocate if speed.allocation == "exact-loss" else uniform_allocation
    return solver(program_of(counts, retained, statistics), allowances)


def allocated(
    window: PublicWindow, retained: IntArray, allowances: IntArray, statistics: CellStatistics
) -> tuple[LaplaceScales, IntArray]:
    """(Flat scales, µε of each user (L,)): exact charges, which the allocation found within the allowances."""
    solution = solve(window.counts, retained, allowances, statistics, window.speed)
    return LaplaceScales(solution.numerator, solution.denominator), solution.charges


def predicted_error(window: PublicWindow, retained: IntArray, flat: LaplaceScales, statistics: CellStatistics) -> float:
    """Σ over cells and statistics of events × (noise scale + clipping bias) in full ranges, at most 1 each."""
    counts = window.counts
    total, kept = counts.by_cell(window.admitted), counts.by_cell(retained)
    error, scales = 0.0, scales_by_statistic(flat, statistics, counts.n_cells)
    for name, statistic in statistics.items():
        scale = scales[name].values
        if scale.ndim > 1:
            scale = scale.sum(axis=1)
        off = scale / statistic.full_ranges(counts, retained) + statistic.clipping_bias(total, kept)
        error += float((total * np.where(kept > 0, np.minimum(off, 1.0), 1.0)).sum())
    return error


def plan_gaussian(
    counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
) -> Plan:
    """Who takes part, the noise scales and every user's charge, in nρ.

    First come: a user takes part whose whole grant, and what histograms ask, is left, and may spend the grant. Rolling:
    everybody may spend what ``allowance.left`` says (:func:`stream.statistics.plan.spendable`), and takes part if
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
    statistics = cell_statistics(terms.speed.statistics, terms.speed, None, ranges)
    program = program_of(kept, kept.samples, statistics)
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
            **({} if ranges is None else ranges.planned),
        ),
    )


_NOBODY = 2
"""nρ that stand for the allowance of users who have next to nothing left, and enter no number."""


def _admitted(counts: Counts, granted: IntArray, speed: SpeedTerms) -> Counts:
    """``counts`` with the samples of those users alone whose grant pays 2 nρ for each number they enter, in cells of
    enough users."""
    numbers = counts.by_user(np.ones(len(counts.samples), dtype=np.int64)) * len(speed.statistics)
    samples = np.where((granted >= 2 * numbers)[counts.pair_user], counts.samples, 0)
    return replace(counts, samples=_enough_users(counts, samples, speed.min_users))


def _mean_noise(kept: Counts, granted: IntArray, speed: SpeedTerms) -> FloatArray:
    """Standard deviation of each cell's noise of the mean without clipping, in quanta; infinite if not released."""
    program = program_of(kept, kept.samples, cell_statistics(speed.statistics, speed, None))
    allocation = allocate_gaussian(program, np.maximum(granted, _NOBODY))
    sigma, samples = allocation.scales[: kept.n_cells], kept.by_cell(kept.samples)  # the mean comes first
    return np.where(samples > 0, sigma / np.maximum(samples, 1), np.inf)


def _half_width(pooled: Counts, granted: IntArray, speed: SpeedTerms) -> FloatArray:
    """Predicted half width of each cell's 95 % interval, km/h, without clipping; infinite without samples."""
    noise = _mean_noise(pooled, granted, speed)
    return np.asarray(noise * float(gaussian_half_width(2**20)) / 2**20 * QUANTUM)


MAX_PAIRS = 200_000
"""(cell, user) pairs up to which more than the plain candidate is tried: beyond, each of the others takes seconds."""


def plan_values(
    counts: Counts, due: Due, allowance: Allowance, asked: IntArray | int = 0, memory: Memory | None = None
) -> Plan:
    """Decide who takes part, which samples are retained, the noise scales and every user's charge.

    First come: a user takes part if a whole window's grant is left, so that one nearly exhausted user cannot inflate
    the noise of everybody in their cells. Rolling: everybody may spend what ``allowance.left`` says
    (:func:`stream.statistics.plan.spendable`), and takes part if that is at least :data:`LEAST` for each of their
    cells. ``asked``: (L,) µε of their charge for histograms. With histograms, users are charged the
    whole allowance for speed, because their exact loss depends on others' counts, and later admissions to histograms
    would reveal who else was there.
    """
    terms = due.terms
    granted, admits = _granted(counts, due, allowance.left)
    merged = merge_hexagons(
        replace(counts, samples=np.where(admits[counts.pair_user], counts.samples, 0)),
        terms.hexagons,
        lambda pooled: _mean_half_width(pooled, granted, terms),
    )
    if merged is not None:
        counts = regroup(counts, merged)
    admitted = np.where(admits[counts.pair_user], counts.samples, 0)
    if left_out := only_for_itself(terms.speed, counts.n_cells):
        due, admitted = _without_distributions(due, admitted)
        terms = due.terms
    speed = terms.speed
    public = PublicWindow(counts, admitted, speed, _caps(counts, admitted, terms), granted)
    if speed.clips:
        kept = replace(counts, samples=admitted)
        noise = _mean_half_width(kept, granted, terms) / QUANTUM / ONE_SIDED
        public = replace(public, ranges=ranges_of(counts, noise, due, memory))
    proposals, cut_short = _proposals(public)
    chosen, decision = min(
        ((name, decide(public, retained)) for name, retained in proposals.items()), key=lambda one: one[1].error
    )
    most = counts.most_cells(admitted), counts.most_cells(decision.retained)
    charges = decision.charges if terms.histogram is None else np.where(admits, terms.privacy.grant + asked, 0)
    return Plan(
        due=due,
        budget=allowance.budget,
        cells=counts.cells,
        users=counts.users,
        charges=charges,
        retained=decision.retained,
        numerators=decision.scales.numerator,
        denominators=decision.scales.denominator,
        counts_digest=counts_digest(counts),
        values=ValuesPart(
            published=counts.by_cell(decision.retained) > 0,
            mean_epsilon_micro=decision.mean_epsilon_micro,
            sum_cap=0 if public.caps is None else int(public.caps.max(initial=speed.upper_quanta)),
            caps=public.caps,
            merged=merged,
            cut_short=(*cut_short, CDF) if left_out and CDF not in speed.statistics else cut_short,
            chosen=chosen if speed.suppression != "none" else "",
            most_cells=most if speed.suppression != "none" else (0, 0),
            **({} if public.ranges is None else public.ranges.planned),
        ),
    )


LEAST = 1000
"""µε that a rolling grant has for each cell of a user who takes part; with less they would inflate the noise of all."""


def _granted(counts: Counts, due: Due, left: IntArray) -> tuple[IntArray, BoolArray]:
    """(What each user may lose in the window, at least 1; whether they take part), (L,) each."""
    privacy = due.terms.privacy
    if not privacy.rolling:
        return np.full(counts.n_users, privacy.grant, dtype=np.int64), left >= due.terms.window_grant
    return np.maximum(left, 1), left >= LEAST * counts.by_user(np.ones(len(counts.samples), dtype=np.int64))


def _without_distributions(due: Due, samples: IntArray) -> tuple[Due, IntArray]:
    """What is due where nobody could read the distributions: the other statistics, or no samples if there are none."""
    others = tuple(name for name in due.terms.speed.statistics if name != CDF)
    if not others:
        return due, np.zeros_like(samples)
    return Due(due.terms.releasing(others), due.window, due.generation), samples


def _caps(counts: Counts, samples: IntArray, terms: Terms) -> IntArray | None:
    """The most that one user adds to Σx of each cell, in quanta, (C,); None without. ``samples``: (P,) that count."""
    speed = terms.speed
    if speed.sum_cap == 0 or speed.mean_mechanism != "allocated":
        return None
    width = widths(counts.cells, terms.hexagons.resolution)
    return sum_caps(replace(counts, samples=samples), speed.upper_quanta, speed.sum_cap, width)


def _mean_half_width(counts: Counts, granted: IntArray, terms: Terms) -> FloatArray:
    """Predicted half width of each cell's 95 % interval, km/h, without clipping; infinite without samples."""
    speed = terms.speed
    statistics = cell_statistics(speed.statistics, speed, _caps(counts, counts.samples, terms))
    allocation = solve(counts, counts.samples, granted, statistics, speed)
    flat = LaplaceScales(allocation.numerator, allocation.denominator)
    mean = scales_by_statistic(flat, statistics, counts.n_cells)["mean"]
    noisy, kept = mean.numerator > 0, counts.by_cell(counts.samples)
    width = np.full(counts.n_cells, np.inf)
    width[noisy] = mean.half_widths()[noisy] * QUANTUM / kept[noisy]
    return width


def _enough_users(counts: Counts, samples: IntArray, min_users: int) -> IntArray:
    """``samples`` with every pair of a cell below ``min_users`` contributors set to 0: a public rule on counts."""
    contributors = counts.by_cell((samples > 0).astype(np.int64))
    return np.where(contributors[counts.pair_cell] >= min_users, samples, 0)


def _proposals(public: PublicWindow) -> tuple[dict[str, IntArray], tuple[str, ...]]:
    """Retained samples (P,) to choose among by name, "all" that are admitted first; and the steps that were cut short.

    What is too costly is decided by public counts, never by a clock: above :data:`MAX_PAIRS` pairs suppression is not
    tried, and it ends at its limit of evaluations. So whoever plans the window decides the same.
    """
    counts, speed = public.counts, public.speed
    plain = _enough_users(counts, public.admitted, speed.min_users)
    proposals, cut_short = {"all": plain}, []
    if not plain.any():
        return proposals, ()
    part = _active_part(counts, plain)
    if speed.suppression == "chop-user":
        suppression = None
        if len(part.samples) <= MAX_PAIRS:
            suppression = sweep_chop_user(
                part,
                public.allowance,
                statistics=[name for name in STATISTICS if name in speed.statistics] or ["mean"],
                min_users=speed.min_users,
                objective=lambda samples: decide(public, _in_place(plain, samples)).error,
            )
            proposals["suppressed"] = _in_place(plain, suppression.samples)
        if suppression is None or not suppression.complete:
            cut_short.append("suppression")
    return proposals, tuple(cut_short)


def _in_place(plain: IntArray, samples: IntArray) -> IntArray:
    """``samples`` of the pairs that are active in ``plain`` (P,), 0 elsewhere."""
    retained = np.zeros_like(plain)
    retained[plain > 0] = samples
    return retained


def _active_part(counts: Counts, samples: IntArray) -> Counts:
    """The pairs with samples, and the cells and users they name."""
    active = samples > 0
    cells, pair_cell = np.unique(counts.pair_cell[active], return_inverse=True)
    users, pair_user = np.unique(counts.pair_user[active], return_inverse=True)
    return Counts(counts.cells[cells], counts.users[users], pair_cell, pair_user, samples[active])


def duality_gap(plan: Plan, counts: Counts) -> float | None:
    """Relative distance of the planned scales' objective to its proved lower bound; None without a program."""
    speed, part = plan.terms.speed, plan.values
    if (
        part is None
        or plan.gaussian
        or plan.terms.privacy.rolling
        or speed.allocation != "exact-loss"
        or part.mean_epsilon_micro
        or not plan.charged_users()[0].size
    ):
        return None
    allowances = np.full(counts.n_users, plan.terms.privacy.grant)
    return solve(counts, plan.retained, allowances, planned_statistics(plan), speed).gap
