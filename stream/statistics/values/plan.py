"""The plan under relation "values", where counts are public and only measured values are protected.

It depends only on public counts, the configuration and the ledger.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.clipping import choose_clipping
from dpcore.contributions import Counts
from dpcore.mean import sum_caps
from dpcore.resolution import regroup
from dpcore.scales import LaplaceScales
from dpcore.suppression import (
    MAX_EVALUATIONS,
    STATISTICS,
    Statistic,
    Suppression,
    suppress,
    sweep_chop_user,
    unsuppressed_noise,
)
from dpcore.suppression_levels import CostLimitError
from stream.config import Config
from stream.config.speed import SPEED_QUANTUM_KMH
from stream.statistics.distributions import only_for_itself
from stream.statistics.merging import merge_hexagons, widths
from stream.statistics.plan import CDF, Plan, counts_digest, empty_plan, pack_flags, pack_ids, pack_integers
from stream.statistics.values.cell_statistics import cell_statistics, planned_statistics, scales_by_statistic
from stream.statistics.values.decisions import PublicWindow, decide, program, solve
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_PAIRS = 200_000
"""(cell, user) pairs up to which more than the plain candidate is tried: beyond, each of the others takes seconds."""


def plan_values(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    asked: IntArray | int = 0,
) -> Plan:
    """Decide who takes part, which samples are retained, the noise scales and every user's charge.

    ``left``: (L,) µε each user of ``counts`` has left in ``period``. A user takes part if a whole window's grant is
    left, so that one nearly exhausted user cannot inflate the noise of everybody in their cells. ``asked``: (L,) µε of
    their charge for histograms. With histograms, users are charged the whole allowance for speed, because their exact loss
    depends on others' counts, and later admissions to histograms would reveal who else was there.
    """
    admits = left >= config.window_grant
    merged = merge_hexagons(
        replace(counts, samples=np.where(admits[counts.pair_user], counts.samples, 0)),
        config.hexagons,
        lambda pooled: _mean_half_width(pooled, config),
    )
    if merged is not None:
        counts = regroup(counts, merged)
    admitted = np.where(admits[counts.pair_user], counts.samples, 0)
    if left_out := only_for_itself(config, counts.n_cells):
        config, admitted = _without_distributions(config, admitted)
    public = PublicWindow(counts, admitted, config, _caps(counts, admitted, config), config.privacy.epsilon_micro)
    public, proposals, cut_short = (_error_kept if config.speed.keep == "error" else _epsilon_kept)(public)
    chosen, decision = min(
        ((name, decide(public, retained)) for name, retained in proposals.items()), key=lambda one: one[1].error
    )
    charges = decision.charges
    if config.histogram is not None:
        charges = np.where(admits, config.privacy.epsilon_micro + asked, 0)
    return msgspec.structs.replace(
        empty_plan(config, window, period, generation),
        mean_epsilon_micro=decision.mean_epsilon_micro,
        counts_digest=counts_digest(counts),
        cells_bytes=pack_ids(counts.cells),
        users_bytes=pack_ids(counts.users),
        charges_bytes=pack_integers(charges),
        retained_bytes=pack_integers(decision.retained),
        published_bytes=pack_flags(counts.by_cell(decision.retained) > 0),
        numerators_bytes=pack_integers(decision.scales.numerator),
        denominators_bytes=pack_integers(decision.scales.denominator),
        **_stored_caps(public),
        merged_bytes=b"" if merged is None else pack_ids(merged),
        cut_short=(*cut_short, CDF) if left_out and CDF not in config.speed.statistics else cut_short,
        **(_stored_choice(chosen, counts, admitted, decision.retained) if _chooses(config) else {}),
    )


def _without_distributions(config: Config, samples: IntArray) -> tuple[Config, IntArray]:
    """The terms of a window whose distributions nobody could read: without them, or without samples if that leaves nothing."""
    others = tuple(name for name in config.speed.statistics if name != CDF)
    if not others:
        return config, np.zeros_like(samples)
    return config.model_copy(update={"speed": config.speed.model_copy(update={"statistics": others})}), samples


def _caps(counts: Counts, samples: IntArray, config: Config) -> IntArray | None:
    """The most that one user adds to Σx of each cell, in quanta, (C,); None for no caps. ``samples``: (P,) that count."""
    speed = config.speed
    if speed.sum_cap == 0 or speed.mean_mechanism != "allocated":
        return None
    width = widths(counts.cells, config.hexagons.resolution)
    return sum_caps(replace(counts, samples=samples), speed.upper_quanta, speed.sum_cap, width)


def _stored_caps(public: PublicWindow) -> dict[str, Any]:
    """Fields of the plan: the largest cap, and the cap of each cell unless they are one."""
    caps = public.caps
    if caps is None:
        return {}
    largest = int(caps.max(initial=public.config.speed.upper_quanta))
    return {"sum_cap": largest, "sum_caps_bytes": b"" if (caps == largest).all() else pack_integers(caps)}


def _mean_half_width(counts: Counts, config: Config) -> FloatArray:
    """Predicted half width of each cell's 95 % interval of the mean in km/h, without clipping; infinite without samples."""
    speed = config.speed
    caps = _caps(counts, counts.samples, config)
    statistics = cell_statistics(speed.statistics, speed.upper_quanta, speed.cdf_bins, caps, speed.cdf_shape)
    allowances = np.full(counts.n_users, config.privacy.epsilon_micro, dtype=np.int64)
    allocation = solve(counts, counts.samples, allowances, statistics, config)
    flat = LaplaceScales(allocation.numerator, allocation.denominator)
    mean = scales_by_statistic(flat, statistics, counts.n_cells)["mean"]
    noisy, kept = mean.numerator > 0, counts.by_cell(counts.samples)
    width = np.full(counts.n_cells, np.inf)
    width[noisy] = mean.half_widths()[noisy] * SPEED_QUANTUM_KMH / kept[noisy]
    return width


def _enough_users(counts: Counts, samples: IntArray, min_users: int) -> IntArray:
    """``samples`` with every pair of a cell below ``min_users`` contributors set to 0: a public rule on counts."""
    contributors = counts.by_cell((samples > 0).astype(np.int64))
    return np.where(contributors[counts.pair_cell] >= min_users, samples, 0)


def _chooses(config: Config) -> bool:
    """Whether a window's plan is chosen among several."""
    return config.speed.suppression != "none" or _clips(config)


def _clips(config: Config) -> bool:
    speed = config.speed
    return speed.clipping == "joint" and speed.allocation == "exact-loss" and speed.mean_mechanism == "allocated"


def _stored_choice(chosen: str, counts: Counts, admitted: IntArray, retained: IntArray) -> dict[str, Any]:
    """Fields of the plan: which proposal it is, and the most cells of one user before and after."""
    return {"chosen": chosen, "most_cells": (_most_cells(counts, admitted), _most_cells(counts, retained))}


def _most_cells(counts: Counts, samples: IntArray) -> int:
    """Most cells in which one user has ``samples`` (P,)."""
    return int(np.bincount(counts.pair_user[samples > 0]).max(initial=0))


def _epsilon_kept(public: PublicWindow) -> tuple[PublicWindow, dict[str, IntArray], tuple[str, ...]]:
    """Retained samples (P,) to choose among by name, "all" that are admitted first; and the steps that were cut short.

    What is too costly is decided by public counts, never by a clock: above :data:`MAX_PAIRS` pairs neither suppression nor
    joint clipping is tried, and suppression ends at its limit of evaluations. So whoever plans the window decides the same.
    """
    counts, speed = public.counts, public.config.speed
    plain = _enough_users(counts, public.admitted, speed.min_users)
    proposals, cut_short = {"all": plain}, []
    if not plain.any():
        return public, proposals, ()
    part = _active_part(counts, plain)
    few_pairs = len(part.samples) <= MAX_PAIRS
    if speed.suppression == "chop-user":
        suppression = _suppressed(part, public, plain) if few_pairs else None
        if suppression is not None:
            proposals["suppressed"] = _in_place(plain, suppression.samples)
        if suppression is None or not suppression.complete:
            cut_short.append("suppression")
    if _clips(public.config):
        if few_pairs:
            proposals["clipped"] = _in_place(plain, _clipped(part, public))
        else:
            cut_short.append("clipping")
    return public, proposals, tuple(cut_short)


def _error_kept(public: PublicWindow) -> tuple[PublicWindow, dict[str, IntArray], tuple[str, ...]]:
    """As :func:`_epsilon_kept`, but ε per cell stays and the loss falls: CHOP-USER in the form of its source.

    ε per cell is ε/K before anything is suppressed, K the most cells of a user. Users are dropped from cells while no cell's
    predicted worst error passes the largest noise before. With K′ cells left every user's allowance is ε·K′/K, rounded
    down: a function of public counts, never above ε. Charges are held to it as to ε. Too costly windows keep ε and all cells.
    """
    counts, config = public.counts, public.config
    plain = _enough_users(counts, public.admitted, config.speed.min_users)
    if not plain.any():
        return public, {"all": plain}, ()
    part, micro = _active_part(counts, plain), config.privacy.epsilon_micro
    per_cell = micro / int(np.bincount(part.pair_user).max())
    threshold = unsuppressed_noise(part, per_cell, _suppressed_statistics(config))
    try:
        suppression = suppress(
            part,
            per_cell,
            statistics=_suppressed_statistics(config),
            min_users=config.speed.min_users,
            threshold=threshold,
            max_evaluations=MAX_EVALUATIONS if len(part.samples) <= MAX_PAIRS else 0,
        )
    except CostLimitError:
        return public, {"all": plain}, ("suppression",)
    allowance = micro * suppression.max_cells // suppression.max_cells_before
    return replace(public, allowance=allowance), {"suppressed": _in_place(plain, suppression.samples)}, ()


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


def _suppressed_statistics(config: Config) -> list[Statistic]:
    """The statistics whose errors suppression compares."""
    return [name for name in STATISTICS if name in config.speed.statistics] or ["mean"]


def _suppressed(part: Counts, public: PublicWindow, plain: IntArray) -> Suppression:
    """The sweep of least predicted error, as plans are compared by. ``part``: the pairs of ``plain`` (P,) with samples."""
    config = public.config
    return sweep_chop_user(
        part,
        config.privacy.epsilon_micro,
        statistics=_suppressed_statistics(config),
        min_users=config.speed.min_users,
        objective=lambda samples: decide(public, _in_place(plain, samples)).error,
    )


def _clipped(part: Counts, public: PublicWindow) -> IntArray:
    allowances = np.full(part.n_users, public.config.privacy.epsilon_micro, dtype=np.int64)
    statistics = public.statistics(public.config.speed.statistics, part.cells)
    return choose_clipping(
        part,
        allowances,
        lambda samples: program(part, samples, statistics),
        min_users=public.config.speed.min_users,
    ).samples


def duality_gap(plan: Plan, counts: Counts, config: Config) -> float | None:
    """Relative distance of the planned scales' objective to its proved lower bound; None without an allocation program."""
    if config.speed.allocation != "exact-loss" or plan.mean_epsilon_micro or not plan.charged_users()[0].size:
        return None
    allowances = np.full(counts.n_users, config.privacy.epsilon_micro)
    return solve(counts, plan.retained, allowances, planned_statistics(plan), config).gap
