"""Relation "participation": nothing about a user is public, not even that a hexagon was visited.

Neighbours differ by all events of one user. Noise scales are configuration; which cells and samples a user contributes
depends on his own data only; every cell of a public list is released in every window. Source: mechanisms S13.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dpcore.accounting import gaussian_losses, gaussian_ratio
from dpcore.budget import MICRO
from dpcore.contributions import Contributions, Counts
from dpcore.errors import BudgetError
from dpcore.gaussian import discrete_gaussian, gaussian_half_width
from dpcore.noise import Noise, interval_half_width, scale_ratio
from stream.cells import public_cells
from stream.config import SPEED_QUANTUM_KMH, Config
from stream.plan import DECIMALS, VARIANCE_GRID, Columns, Plan, ZcdpTerms, check_rows, counts_digest
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_NO_BOUND = float(2**53)


def integer_statistics(statistics: tuple[str, ...], upper: int, samples_per_cell: int) -> dict[str, int]:
    """Released integers per cell and their sensitivity to one user who contributes m samples there.

    ``users``: 1. ``events``: m. ``sum`` of 2x − U: m·U. ``squares``, (2x − U)² rounded to 4 grid units per sample
    before anything is summed: m times the largest.
    """
    bounds = {"users": 1, "events": samples_per_cell, "sum": samples_per_cell * upper}
    if "variance" in statistics:
        bounds["squares"] = samples_per_cell * int(_squares(np.array([upper]), upper)[0])
    return bounds


def cell_grant(config: Config) -> int:
    """Most of one cell, in µε or nρ: the window's allowance shared by the k cells a user may contribute to, rounded down."""
    assert config.participation is not None
    return config.privacy.ledger_grant // config.participation.cells_per_user


def scales(config: Config) -> tuple[IntArray, IntArray]:
    """Noise scales t/s of the released integers, shape (S,): constants of the configuration; under zCDP σ of Gaussians.

    Raises :class:`BudgetError` if the shares of a cell, each rounded up, would pass its allowance.
    """
    assert config.participation is not None
    upper, m = config.speed.upper_quanta, config.participation.samples_per_cell
    bounds = list(integer_statistics(config.speed.statistics, upper, m).values())
    share = cell_grant(config) // len(bounds)
    if share < 1:
        raise BudgetError(
            f"epsilon {config.privacy.epsilon} over {config.participation.cells_per_user} cells and {len(bounds)} numbers "
            "leaves less than 1 unit of the ledger each; raise the allowance or lower cells_per_user"
        )
    if config.privacy.accounting == "zcdp":
        ratios = np.array([gaussian_ratio(bound, share) for bound in bounds], dtype=np.int64)
        return ratios[:, 0], ratios[:, 1]
    t, s = scale_ratio(np.array([bound * MICRO / share for bound in bounds]))
    for bound, numerator, denominator in zip(bounds, t.tolist(), s.tolist(), strict=True):
        if bound * denominator * MICRO > share * numerator:
            raise BudgetError("a noise scale falls short of its share after rounding; nothing may be released with it")
    return t, s


def own_choice(counts: Counts, cells: npt.NDArray[np.uint64], cells_per_user: int, samples_per_cell: int) -> IntArray:
    """Samples kept per pair, shape (P,): of each user the k listed cells with most of his samples, m samples in each.

    Ties go to the lowest cell. A user's row depends on his own events and the public list only.
    """
    listed = np.isin(counts.cells, cells)[counts.pair_cell]
    pairs = np.flatnonzero(listed)
    order = pairs[np.lexsort((counts.pair_cell[pairs], -counts.samples[pairs], counts.pair_user[pairs]))]
    user = counts.pair_user[order]
    first = np.searchsorted(user, user)
    chosen = order[np.arange(len(order)) - first < cells_per_user]
    kept = np.zeros(len(counts.samples), dtype=np.int64)
    kept[chosen] = np.minimum(counts.samples[chosen], samples_per_cell)
    return kept


def pair_charges(kept: IntArray, config: Config) -> IntArray:
    """What a user pays for each of his pairs with ``kept`` (P,) samples: his own data only; shape (P,), µε or nρ.

    µε: ε per cell. nρ: the exact loss Σ Δ²/(2σ²) of that many samples, each number's rounded up; never above ρ per cell.
    """
    if config.privacy.accounting == "pure":
        return np.where(kept > 0, cell_grant(config), 0)
    distinct, which = np.unique(np.append(kept, 0), return_inverse=True)
    statistics, upper = config.speed.statistics, config.speed.upper_quanta
    moved = [list(integer_statistics(statistics, upper, samples).values()) for samples in distinct.tolist()]
    loss = np.zeros(len(distinct), dtype=np.int64)
    for row, t, s in zip(np.array(moved, dtype=np.int64).T, *scales(config), strict=True):
        loss += gaussian_losses(row, int(t), int(s))
    loss[distinct == 0] = 0
    return np.asarray(loss[which[:-1]])


def plan_participation(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    asked: IntArray | int = 0,
) -> Plan:
    """Every user's own choice, charged for the cells kept; one who cannot pay contributes exactly nothing.

    ``asked``: (L,) units of the ledger for his part in the histograms, paid together with the rest or not at all.
    """
    assert config.participation is not None
    cells = public_cells(config)
    kept = own_choice(counts, cells, config.participation.cells_per_user, config.participation.samples_per_cell)
    charges = counts.by_user(pair_charges(kept, config)) + asked
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


def exact_integers(plan: Plan, contributions: Contributions) -> IntArray:
    """The integers that noise is added to, shape (S, C) over the public cells: never to be shown."""
    kept = contributions.retain(np.frombuffer(plan.retained, "<i8"))
    counts, upper = kept.counts, plan.upper_quanta
    cells = np.frombuffer(plan.cells, "<u8")
    column = np.searchsorted(cells, counts.cells[counts.pair_cell])
    of_value = np.repeat(column, counts.samples)
    used = counts.samples > 0
    rows = [
        np.bincount(column[used], minlength=len(cells) + 1),
        np.bincount(of_value, minlength=len(cells) + 1),
        _sums(of_value, 2 * kept.values - upper, len(cells) + 1),
    ]
    if "variance" in plan.statistics:
        rows.append(_sums(of_value, _squares(kept.values, upper), len(cells) + 1))
    return np.array(rows, dtype=np.int64)[:, : len(cells)]


def draw_participation(plan: Plan, contributions: Contributions, noise: Noise) -> dict[str, Columns]:
    """Noise for every integer of every public cell in one batch, then ratios of the noisy numbers.

    Raises :class:`stream.plan.PlanError` if the rows are not those that were planned and charged.
    """
    check_rows(plan, contributions)
    exact = exact_integers(plan, contributions)
    t = np.broadcast_to(np.frombuffer(plan.numerators, "<i8")[:, None], exact.shape)
    s = np.broadcast_to(np.frombuffer(plan.denominators, "<i8")[:, None], exact.shape)
    noisy = exact + (discrete_gaussian(noise, t, s) if plan.zcdp else noise.discrete_laplace(t, s))
    scale = (t / s)[:, 0]
    width = _half_width(plan)(t[:, 0], s[:, 0])
    columns = {
        name: Columns(
            noisy[row].astype(np.float64),
            np.maximum(noisy[row], 0).astype(np.float64),
            np.full(noisy.shape[1], scale[row]),
            noisy[row] - width[row],
            noisy[row] + width[row],
            _NO_BOUND,
        )
        for row, name in enumerate(("users", "events"))
    }
    return columns | _ratios(plan, noisy, t[:, 0], s[:, 0])


def _half_width(plan: Plan) -> Callable[..., FloatArray]:
    return gaussian_half_width if plan.zcdp else interval_half_width


def _ratios(plan: Plan, noisy: IntArray, t: IntArray, s: IntArray) -> dict[str, Columns]:
    """Mean and variance from noisy sums over the noisy count; intervals by Bonferroni over the numbers involved."""
    upper = plan.upper_quanta * SPEED_QUANTUM_KMH
    grid = VARIANCE_GRID * SPEED_QUANTUM_KMH**2
    n = np.maximum(noisy[1], 1).astype(np.float64)
    wide = _half_width(plan)(t, s, 1 - 0.05 / (len(t) - 1))
    least = noisy[1] - wide[1]
    known = least >= 1
    fewest, most = np.maximum(least, 1.0), np.maximum(noisy[1] + wide[1], 1.0)
    half = SPEED_QUANTUM_KMH / 2
    deviation = noisy[2] * half / n
    low = np.minimum((noisy[2] - wide[2]) / fewest, (noisy[2] - wide[2]) / most) * half
    high = np.maximum((noisy[2] + wide[2]) / fewest, (noisy[2] + wide[2]) / most) * half
    raw = np.round(upper / 2 + deviation, DECIMALS["mean"])
    columns = {
        "mean": Columns(
            raw,
            np.clip(raw, 0.0, upper),
            t[2] / s[2] * half / n,
            np.where(known, upper / 2 + low, 0.0),
            np.where(known, upper / 2 + high, upper),
            upper,
        )
    }
    if "variance" in plan.statistics:
        second = noisy[3] * grid / n
        square_low = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low**2, high**2))
        square_high = np.maximum(low**2, high**2)
        raw = np.round(second - deviation**2, DECIMALS["variance"])
        top = upper**2 / 4
        columns["variance"] = Columns(
            raw,
            np.clip(raw, 0.0, top),
            t[3] / s[3] * grid / n,
            np.where(known, np.maximum(noisy[3] - wide[3], 0) * grid / most - square_high - grid, 0.0),
            np.where(known, np.maximum(noisy[3] + wide[3], 0) * grid / fewest - square_low + grid, top),
            top,
        )
    return {name: columns[name] for name in plan.statistics}


def _squares(values: IntArray, upper: int) -> IntArray:
    """(x − U/2)² of each value in units of the variance grid, rounded half up."""
    return (np.square(2 * values - upper) + 2 * VARIANCE_GRID) // (4 * VARIANCE_GRID)


def _sums(index: IntArray, values: IntArray, size: int) -> IntArray:
    """Exact integer sums per index; bincount would add in floating point."""
    order = np.argsort(index, kind="stable")
    total = np.append(0, np.cumsum(values[order]))
    start = np.searchsorted(index[order], np.arange(size + 1))
    sums: IntArray = total[start[1:]] - total[start[:-1]]
    return sums
