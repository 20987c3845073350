"""What zCDP under relation "values", residual clipping and rolling grants need of the rest of a configuration."""

from __future__ import annotations

from collections.abc import Iterator

from dpcore.relation import NeighbouringRelation
from stream.config.privacy import PrivacyConfig
from stream.config.speed import FROM_BINS, SpeedConfig

Needs = dict[str, tuple[bool, str]]
"""For each key whether it prevents the setting, and why or what to write instead."""


def live_problems(
    relation: NeighbouringRelation, privacy: PrivacyConfig, speed: SpeedConfig, shared: bool, histogram: bool
) -> Iterator[str]:
    """A sentence for each choice that others are in the way of. ``shared``: whether feeds share the ledger."""
    values, zcdp = relation == NeighbouringRelation.VALUES, privacy.accounting == "zcdp"
    chosen: dict[str, tuple[bool, Needs]] = {
        "privacy.accounting 'zcdp' under 'values'": (values and zcdp, _gaussian(speed)),
        "speed.clipping 'residual'": (speed.clipping == "residual", _residual(speed, values)),
        "privacy.admission 'rolling'": (privacy.admission == "rolling", _rolling(speed, values, shared, histogram)),
    }
    for name, (applies, needs) in chosen.items():
        problems = [f"{key}: {why}" for key, (bad, why) in needs.items() if bad]
        if applies and problems:
            yield f"not with {name}: " + "; ".join(problems)


def _gaussian(speed: SpeedConfig) -> Needs:
    return {
        "speed.mean_mechanism": (
            speed.mean_mechanism != "allocated",
            "the papers' mechanisms are for pure ε; set it to 'allocated'",
        ),
        "speed.suppression": (speed.suppression != "none", "CHOP-USER is for pure ε; set it to 'none'"),
        "speed.allocation": (speed.allocation != "exact-loss", "set it to 'exact-loss'"),
        "speed.sum_cap": (speed.sum_cap != 0, "residual clipping takes its place; set it to 0"),
        "speed.statistics": (
            bool(set(speed.statistics) & set(FROM_BINS)),
            "trees of percentiles have Laplace noise; use mean, moving_mean and variance",
        ),
    }


def _residual(speed: SpeedConfig, values: bool) -> Needs:
    return {
        "speed.statistics": (
            not values and "variance" in speed.statistics,
            "clipped means of users do not give the variance of speeds; leave out 'variance'",
        ),
        "speed.post_processing": ("kalman" not in speed.post_processing, "only 'kalman' foretells; add it"),
        "speed.mean_mechanism": (
            speed.mean_mechanism != "allocated",
            "the papers' mechanisms choose ranges of their own; set it to 'allocated'",
        ),
        "speed.sum_cap": (speed.sum_cap != 0, "it takes the place of caps; set it to 0"),
    }


def _rolling(speed: SpeedConfig, values: bool, shared: bool, histogram: bool) -> Needs:
    one_grant = "it shares one grant among all users; set it to"
    return {
        "relation": (not values, "noise would follow what each user did before; set admission to 'paced'"),
        "speed.mean_mechanism": (speed.mean_mechanism != "allocated", f"{one_grant} 'allocated'"),
        "speed.suppression": (speed.suppression != "none", f"{one_grant} 'none'"),
        "ledger": (shared, "noise would follow when another feed draws; leave it out"),
        "histogram": (histogram, "histograms charge whole grants; leave it out"),
    }
