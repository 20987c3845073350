"""The plan under relation "participation", where nothing about a user is public, not even that a hexagon was visited.

Neighbours differ by all events of one user. Noise scales are constants of the configuration. The cells and samples
that a user contributes, their weights and the charge depend on the user's own data only (:mod:`dpcore.participation`). Every
cell of a public list is released in every window.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.contributions import Counts
from dpcore.level_tree import TreeShape
from dpcore.participation import Layout, Participation, Weight
from stream.config import Config
from stream.statistics.distributions import needs_distribution
from stream.statistics.participation.public_cells import public_cells
from stream.statistics.plan import (
    Plan,
    ZcdpTerms,
    counts_digest,
    empty_plan,
    pack_flags,
    pack_ids,
    pack_integers,
)
from stream.windows import Period, Window

IntArray = npt.NDArray[np.int64]


@lru_cache(maxsize=8)
def layout_of(
    statistics: tuple[str, ...], weight: Weight, upper: int, bins: int, shape: TreeShape, area: bool
) -> Layout:
    """The numbers that are released of every cell for the named ``statistics``, and of the ``area`` as a whole."""
    return Layout.of(
        mean="mean" in statistics,
        variance="variance" in statistics,
        percentiles=needs_distribution(statistics),
        weight=weight,
        upper=upper,
        bins=bins,
        shape=shape,
        area=area,
    )


def planned_layout(plan: Plan) -> Layout:
    """The layout of a stored plan."""
    return layout_of(plan.statistics, plan.weight, plan.upper_quanta, plan.cdf_bins, plan.cdf_shape, plan.area)


participation_with = lru_cache(maxsize=8)(Participation)
"""Rules are made once, because their noise scales are the same in every window."""


def participation_of(config: Config) -> Participation:
    """The rules by which users contribute, from the configuration."""
    settings, speed = config.participation, config.speed
    assert settings is not None, "the configuration has the section under this relation"
    shares, bins, shape = settings.shares, speed.cdf_bins, speed.cdf_shape
    return participation_with(
        layout_of(speed.statistics, settings.weight, speed.upper_quanta, bins, shape, shares.area > 0),
        cells=settings.cells_per_user,
        samples=settings.samples_per_cell,
        grant=config.privacy.ledger_grant,
        gaussian=config.privacy.accounting == "zcdp",
        shares=(float(shares.moments), float(shares.users), float(shares.percentiles)),
        area_share=float(shares.area),
    )


def plan_participation(
    counts: Counts,
    left: IntArray,
    config: Config,
    window: Window,
    period: Period,
    generation: str,
    asked: IntArray | int = 0,
) -> Plan:
    """The contribution and charge of every user. A user who cannot pay contributes nothing, and nothing published shows it.

    ``asked``: (L,) the charge for histograms in the ledger's unit. A user pays it together with the rest or not at all.
    """
    terms, cells = participation_of(config), public_cells(config)
    kept = terms.own_choice(counts, cells)
    charges = terms.charges(replace(counts, samples=kept)) + asked
    pays = charges <= left
    t, s = terms.scales
    return msgspec.structs.replace(
        empty_plan(config, window, period, generation),
        weight=terms.layout.weight,
        area=terms.layout.area,
        counts_digest=counts_digest(counts),
        cells_bytes=pack_ids(cells),
        users_bytes=pack_ids(counts.users),
        charges_bytes=pack_integers(np.where(pays, charges, 0)),
        retained_bytes=pack_integers(np.where(pays[counts.pair_user], kept, 0)),
        published_bytes=pack_flags(np.ones(len(cells), dtype=bool)),
        numerators_bytes=pack_integers(t),
        denominators_bytes=pack_integers(s),
        zcdp=_zcdp_terms(config),
    )


def _zcdp_terms(config: Config) -> ZcdpTerms | None:
    privacy = config.privacy
    if privacy.rho is None or privacy.rho_budget is None or privacy.delta is None:
        return None
    return ZcdpTerms(privacy.rho, privacy.rho_budget, privacy.delta, privacy.ledger_budget)
