"""The configurations that an evaluation compares: other epsilons, mechanisms and accountings with an equal promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpcore.errors import DPError
from dpcore.relation import NeighbouringRelation
from stream.config import Config, ConfigError
from stream.config.loading import with_section
from stream.statistics.values.cell_means import MECHANISMS

_PLAIN = {"allocation": "uniform", "suppression": "none", "clipping": "none", "sum_cap": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "uniform": _PLAIN,
    "chop-user": _PLAIN | {"suppression": "chop-user"},
    "exact-loss": _PLAIN | {"allocation": "exact-loss"},
    "exact-loss+chop-user": _PLAIN | {"allocation": "exact-loss", "suppression": "chop-user"},
    "exact-loss+cap": _PLAIN | {"allocation": "exact-loss", "sum_cap": 0.7},
} | {name: _PLAIN | {"mean_mechanism": name} for name in MECHANISMS}
"""Ways to share each user's epsilon, all with the same loss per user and window."""
ACCOUNTINGS = ("pure", "zcdp")
"""Ways to count losses, at an equal promise for a period."""
COMPARED_DELTA = 1e-6
"""δ of the promise under "zcdp" if the configuration uses pure ε."""


def with_speed(config: Config, **changes: Any) -> Config:
    """``config`` with other settings of ``[speed]``."""
    return config.model_copy(update={"speed": config.speed.model_copy(update=changes)})


def with_epsilon(config: Config, epsilon: float) -> Config:
    """``config`` with another epsilon, its budget in proportion; under zCDP with the ρ that converts to it.

    Raises :class:`stream.config.ConfigError` for an epsilon that a configuration may not have.
    """
    privacy = config.privacy
    try:
        grant = privacy.units(epsilon)
    except DPError as error:
        raise ConfigError(f"privacy: {error}") from None
    keys = privacy.keys_for(grant, privacy.ledger_budget * grant // privacy.ledger_grant)
    return with_section(config, "privacy", privacy.model_dump(by_alias=True) | keys)


def with_accounting(config: Config, accounting: str) -> Config:
    """``config`` under "pure" or "zcdp" with the same (ε, δ) promised for a period and as many windows paid in full.

    δ is the configured one, else :data:`COMPARED_DELTA`; "pure" promises the same ε with δ = 0.
    """
    privacy = config.privacy
    if accounting == privacy.accounting:
        return config
    given = privacy.model_dump(by_alias=True) | {"accounting": accounting}
    grants, budgets = privacy.ledger_grant, privacy.ledger_budget
    if accounting == "zcdp":
        given |= {"epsilon": None, "delta": COMPARED_DELTA, "windows": max(budgets // grants, 1)}
    else:
        given |= {"delta": None, "windows": None, "epsilon": privacy.budget * grants / budgets}
    return with_section(config, "privacy", given)


def variant_names(config: Config) -> list[str]:
    """Variants that the relation allows: mechanisms under "values", accountings under "participation"."""
    return list(VARIANTS) if config.relation == NeighbouringRelation.VALUES else list(ACCOUNTINGS)


def variants(config: Config, names: list[str]) -> Iterator[tuple[str, Config]]:
    """The named variants of a configuration."""
    for name in names:
        if name in ACCOUNTINGS:
            yield name, with_accounting(config, name)
        else:
            yield name, config if name == "configured" else with_speed(config, **VARIANTS[name])
