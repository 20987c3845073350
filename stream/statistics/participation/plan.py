"""The plan under relation "participation", where nothing about a user is public, not even that a hexagon was visited.

Neighbours differ by all events of one user. Noise scales are constants of the terms. The cells and samples that a user
contributes, their weights and the charge depend on the user's own data only (:mod:`dpcore.participation`). Every cell
of a public list is released in every window.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpcore.arrays import IdArray, IntArray
from dpcore.contributions import Counts
from dpcore.participation import Layout, Participation, Weight
from stream.statistics.columns import MOVING_MEAN
from stream.statistics.distributions import needs_distribution
from stream.statistics.plan import Allowance, Due, ParticipationPart, Plan, counts_digest
from stream.terms import MOVING_QUANTA, ParticipationTerms, SpeedTerms, Terms


@lru_cache(maxsize=8)
def _layout(speed: SpeedTerms, weight: Weight, area: bool) -> Layout:
    return Layout.of(
        mean="mean" in speed.statistics,
        variance="variance" in speed.statistics,
        percentiles=needs_distribution(speed.statistics),
        weight=weight,
        upper=speed.upper_quanta,
        bins=speed.cdf_bins,
        area=area,
        moving_from=MOVING_QUANTA if MOVING_MEAN in speed.statistics else 0,
    )


def layout_of(terms: Terms) -> Layout:
    """The numbers that are released of every cell, and of the area as a whole."""
    own = own_terms(terms)
    return _layout(terms.speed, own.weight, own.shares[-1] > 0)


def own_terms(terms: Terms) -> ParticipationTerms:
    """The part of the terms that is there under this relation."""
    assert terms.participation is not None, "the terms have the part under this relation"
    return terms.participation


participation_with = lru_cache(maxsize=8)(Participation)
"""Rules are made once, because their noise scales are the same in every window."""


def participation_of(terms: Terms) -> Participation:
    """The rules by which users contribute."""
    own, privacy = own_terms(terms), terms.privacy
    moments, users, percentiles, area = map(float, own.shares)
    return participation_with(
        layout_of(terms),
        cells=own.cells_per_user,
        samples=own.samples_per_cell,
        grant=privacy.grant,
        gaussian=privacy.zcdp is not None,
        shares=(moments, users, percentiles),
        area_share=area,
    )


def plan_participation(
    counts: Counts, due: Due, allowance: Allowance, cells: IdArray, asked: IntArray | int = 0
) -> Plan:
    """The contribution and charge of every user. A user who cannot pay contributes nothing, and nothing published shows
    it.

    ``cells``: ids of the public list, (C,), ascending. ``asked``: (L,) the charge for histograms in the ledger's unit.
    A user pays it together with the rest or not at all.
    """
    rules = participation_of(due.terms)
    kept = rules.own_choice(counts, cells)
    charges = rules.charges(replace(counts, samples=kept)) + asked
    pays = charges <= allowance.left
    t, s = rules.scales
    return Plan(
        due=due,
        budget=allowance.budget,
        cells=cells,
        users=counts.users,
        charges=np.where(pays, charges, 0),
        retained=np.where(pays[counts.pair_user], kept, 0),
        numerators=t,
        denominators=s,
        counts_digest=counts_digest(counts),
        participation=ParticipationPart(),
    )
