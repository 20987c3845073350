"""Relation "participation": nothing about a user is public, not even that a hexagon was visited. The plan.

Neighbours differ by all events of one user. Noise scales are configuration; which cells and samples a user contributes,
with what weight, and what he is charged depends on his own data only; every cell of a public list is released in every
window. Source: mechanisms S13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpcore.accounting import gaussian_ratio, square_losses
from dpcore.budget import MICRO
from dpcore.cdf import bin_tree
from dpcore.contributions import Contributions, Counts
from dpcore.errors import BudgetError
from dpcore.level_tree import LevelTree, split_budget
from dpcore.scales import noise_ratio
from stream.config import Config
from stream.statistics.participation.public_cells import public_cells
from stream.statistics.plan import PERCENTS, Plan, ZcdpTerms, counts_digest
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]

UNIT = 2**20
"""Integer weight of one sample, or of one user: fine enough that a user's weight divides among thousands of samples."""


@dataclass(frozen=True)
class Layout:
    """What is released of every cell, in the order of the plan's scales: constants of the configuration.

    ``polynomials``: degree of the numbers that hold count, mean and variance. ``users``: whether users are counted apart
    from their samples. ``tree``: over the bins of the distribution, None without percentiles. Each of them is a part with
    a noise scale of its own, the tree one per level.
    """

    polynomials: int
    users: bool
    tree: LevelTree | None

    @classmethod
    def of(cls, statistics: tuple[str, ...], weight: str, upper: int, bins: int) -> Layout:
        """The layout for these ``statistics`` of values up to ``upper`` quanta."""
        degree = 2 if "variance" in statistics else int("mean" in statistics)
        tree = bin_tree(upper, bins) if set(PERCENTS) & set(statistics) else None
        return cls(degree, weight == "sample", tree)

    @property
    def rows(self) -> IntArray:
        """Released numbers per cell of each part, shape (parts,)."""
        nodes = [] if self.tree is None else self.tree.real_nodes()
        return np.array([self.polynomials + 1] + [1] * self.users + nodes, dtype=np.int64)

    @classmethod
    def planned(cls, plan: Plan) -> Layout:
        """The layout of a stored plan."""
        return cls.of(plan.statistics, plan.weight, plan.upper_quanta, plan.cdf_bins)


def layout(config: Config) -> Layout:
    """The layout that the configuration asks for."""
    assert config.participation is not None
    speed = config.speed
    return Layout.of(speed.statistics, config.participation.weight, speed.upper_quanta, speed.cdf_bins)


def unit_grant(config: Config) -> int:
    """µε, or nρ, that one full contribution costs at most, rounded down.

    With ``weight`` "sample" or "user" that is one cell, and a window's allowance is shared by the k cells a user may
    contribute to; with "share" a user makes one contribution to the window, divided over his cells.
    """
    assert config.participation is not None
    parts = 1 if config.participation.weight == "share" else config.participation.cells_per_user
    return config.privacy.ledger_grant // parts


def sensitivities(config: Config) -> IntArray:
    """Most that one full contribution moves each part, in 1/:data:`UNIT`, shape (parts,): in L1, hence also in L2.

    A sample of weight w adds non-negative integers of sum w to the polynomials of its cell, and to one node of each level.
    """
    assert config.participation is not None
    found, most = layout(config), UNIT
    if config.participation.weight == "sample":
        most *= config.participation.samples_per_cell
    levels = 0 if found.tree is None else found.tree.height
    return np.array([most] + [UNIT] * found.users + [most] * levels, dtype=np.int64)


def shares(config: Config) -> IntArray:
    """µε, or nρ, of each part of a full contribution, in the order of :func:`sensitivities`; they add up to it exactly.

    Raises :class:`BudgetError` where a part would get less than 1.
    """
    assert config.participation is not None
    found, asked = layout(config), config.participation.shares
    weights = [float(asked.moments)] + [float(asked.users)] * found.users
    if found.tree is not None:
        # The variance of a level is ∝ 1/ε², but ∝ 1/ρ: least in total at shares ∝ (n − 1)^(1/3) and (n − 1)^(1/2).
        levels = found.tree.shares() ** (1.5 if config.privacy.accounting == "zcdp" else 1.0)
        weights += (asked.percentiles * levels / levels.sum()).tolist()
    if unit_grant(config) < len(weights):
        raise BudgetError(
            f"an allowance of {config.privacy.ledger_grant} {config.privacy.ledger_unit[0]} over "
            f"{config.participation.cells_per_user} cells and {len(weights)} parts leaves less than 1 each; "
            "raise the allowance, or lower cells_per_user"
        )
    return split_budget(unit_grant(config), np.array(weights) / sum(weights))


def scales(config: Config) -> tuple[IntArray, IntArray]:
    """Noise scales t/s of the parts: constants of the configuration, and never less noise than their share pays for.

    Under zCDP σ of Gaussians. Raises :class:`BudgetError`, or :class:`dpcore.errors.OverflowBoundError` for scales above 2^40.
    """
    bounds, parts = sensitivities(config).tolist(), shares(config).tolist()
    if config.privacy.accounting == "zcdp":
        t, s = np.array([gaussian_ratio(bound, part) for bound, part in zip(bounds, parts, strict=True)]).T
        return t, s
    ratios = [noise_ratio(bound, part) for bound, part in zip(bounds, parts, strict=True)]
    if any(bound * s * MICRO > part * t for bound, part, (t, s) in zip(bounds, parts, ratios, strict=True)):
        raise BudgetError("a noise scale falls short of its share after rounding; nothing may be released with it")
    t, s = np.array(ratios, dtype=np.int64).T
    return t, s


def own_choice(
    counts: Counts, cells: npt.NDArray[np.uint64], cells_per_user: int, samples_per_cell: int | None
) -> IntArray:
    """Samples kept per pair, shape (P,): of each user the k listed cells with most of his samples, m samples in each.

    None keeps all of them. Ties go to the lowest cell. A user's row depends on his own events and the public list only.
    """
    listed = np.isin(counts.cells, cells)[counts.pair_cell]
    pairs = np.flatnonzero(listed)
    order = pairs[np.lexsort((counts.pair_cell[pairs], -counts.samples[pairs], counts.pair_user[pairs]))]
    user = counts.pair_user[order]
    first = np.searchsorted(user, user)
    chosen = order[np.arange(len(order)) - first < cells_per_user]
    kept = np.zeros(len(counts.samples), dtype=np.int64)
    own = counts.samples[chosen]
    kept[chosen] = own if samples_per_cell is None else np.minimum(own, samples_per_cell)
    return kept


def _running(counts: Counts, weight: str) -> tuple[IntArray, IntArray]:
    """Samples of a whole that come before each pair, and samples of that whole; shape (P,) each.

    The whole is the pair under "user", all of its user's pairs under "share".
    """
    if weight == "user":
        return np.zeros(len(counts.samples), dtype=np.int64), counts.samples
    order = np.argsort(counts.pair_user, kind="stable")
    running = np.cumsum(counts.samples[order]) - counts.samples[order]
    before = np.empty(len(counts.samples), dtype=np.int64)
    before[order] = running - running[np.searchsorted(counts.pair_user[order], counts.pair_user[order])]
    return before, counts.by_user(counts.samples)[counts.pair_user]


def pair_weights(counts: Counts, weight: str) -> IntArray:
    """Integer weight of every pair with ``counts.samples`` kept samples, shape (P,), in 1/:data:`UNIT`: his own data only.

    "sample": 1 for each of them. "user": 1. "share": parts of 1 as his samples of the window are divided.
    """
    if weight == "sample":
        return UNIT * counts.samples
    before, whole = _running(counts, weight)
    some = np.maximum(whole, 1)
    found: IntArray = UNIT * (before + counts.samples) // some - UNIT * before // some
    return found


def sample_weights(kept: Contributions, weight: str) -> IntArray:
    """Integer weight of every kept value, shape (N,), in 1/:data:`UNIT`; they add up to :func:`pair_weights` exactly."""
    counts = kept.counts
    if weight == "sample":
        return np.full(len(kept.values), UNIT, dtype=np.int64)
    before, whole = _running(counts, weight)
    position = np.arange(len(kept.values)) - np.repeat(kept.pair_start[:-1] - before, counts.samples)
    some = np.repeat(np.maximum(whole, 1), counts.samples)
    weights: IntArray = UNIT * (position + 1) // some - UNIT * position // some
    return weights


def own_charges(counts: Counts, config: Config) -> IntArray:
    """What each user pays for his pairs with ``counts.samples`` kept samples, shape (L,), µε or nρ: his own data only.

    µε: :func:`unit_grant` for each of his cells, or once with "share". nρ: the exact loss Σ w²/(2σ²) of his weights w, each
    part's rounded up, for noise on numbers of L2 norm at most w. Never above the grant of a window: with "share" his
    weights add up to 1, otherwise he has at most k cells of at most one full contribution.
    """
    assert config.participation is not None
    weight = config.participation.weight
    cells = counts.by_user((counts.samples > 0).astype(np.int64))
    if config.privacy.accounting == "pure":
        return (np.minimum(cells, 1) if weight == "share" else cells) * unit_grant(config)
    # Squares in units that fit: of UNIT², or of 1 where a user's weights add up to UNIT.
    unit, of_cell = (1, pair_weights(counts, weight)) if weight == "share" else (UNIT, counts.samples)
    squares = cells if weight == "user" else counts.by_user(np.square(of_cell))
    found, charges = layout(config), np.zeros(counts.n_users, dtype=np.int64)
    for part, (t, s) in enumerate(zip(*(column.tolist() for column in scales(config)), strict=True)):
        moved = cells if found.users and part == 1 else squares
        charges += square_losses(moved, t, s * unit)
    return charges


def plan_participation(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    asked: IntArray | int = 0,
) -> Plan:
    """Every user's own choice and charge; one who cannot pay contributes exactly nothing, and nothing shows it.

    ``asked``: (L,) units of the ledger for his part in the histograms, paid together with the rest or not at all.
    """
    settings = config.participation
    assert settings is not None
    cells = public_cells(config)
    samples = settings.samples_per_cell if settings.weight == "sample" else None
    kept = own_choice(counts, cells, settings.cells_per_user, samples)
    retained = replace(counts, samples=kept)
    charges = own_charges(retained, config) + asked
    pays = charges <= left
    t, s = scales(config)
    return Plan(
        window=window,
        period=period,
        generation=generation,
        epsilon=config.privacy.epsilon,
        budget=config.privacy.budget,
        budget_micro=0 if config.privacy.accounting == "zcdp" else config.privacy.budget_micro,
        statistics=config.speed.statistics,
        cdf_bins=config.speed.cdf_bins,
        upper_quanta=config.speed.upper_quanta,
        resolution=config.hexagons.resolution,
        relation="participation",
        weight=settings.weight,
        mean_mechanism="allocated",
        mean_epsilon_micro=0,
        counts_digest=counts_digest(counts),
        cells=cells.astype("<u8").tobytes(),
        users=counts.users.astype("<u8").tobytes(),
        charges=np.where(pays, charges, 0).astype("<i8").tobytes(),
        retained=np.where(pays[counts.pair_user], kept, 0).astype("<i8").tobytes(),
        published=np.ones(len(cells), dtype=np.uint8).tobytes(),
        numerators=t.astype("<i8").tobytes(),
        denominators=s.astype("<i8").tobytes(),
        zcdp=_zcdp_terms(config),
    )


def _zcdp_terms(config: Config) -> ZcdpTerms | None:
    privacy = config.privacy
    if privacy.rho is None or privacy.rho_budget is None or privacy.delta is None:
        return None
    return ZcdpTerms(privacy.rho, privacy.rho_budget, privacy.delta, privacy.ledger_budget)
