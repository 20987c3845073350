"""``python -m tests.audit.worst_losses``: the table of docs/privacy.md, worst loss over charge of every forced
transcript. Exact.

Under "participation" the transcripts are those of all 4⁹ worlds of 3 users, 3 windows and 2 cells, against the budget
that pays for them; under "values" random windows in which each user's values are at 0, at U and at random, against each
user's charge.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

from dpcore.accounting import NANO
from tests.audit.values_losses import SETTINGS, TREES, fleet, worst_share
from tests.audit.worlds import AREA, honest, small_world, small_zcdp_world, worst_loss

PURE = [
    ("share", ["mean", "variance", "p50"], {}),
    ("share", ["mean", "variance", "p50"], AREA),
    ("user", ["mean", "p85"], {}),
    ("sample", ["mean", "variance"], {}),
    ("share", ["mean", "moving_mean"], {}),
]
RHO = [
    ("share", ["mean", "variance"], {}),
    ("share", ["mean"], AREA | {"rho_budget": 0.2}),
    ("user", ["mean", "p85"], {}),
    ("sample", ["mean"], {}),
    ("user", ["moving_mean"], {}),
]


def main() -> None:
    """Print the table."""
    print("| relation | settings | statistics | worst loss / charge |\n|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for unit, cases, world, per_one in (("ε", PURE, small_world, 10**6), ("ρ", RHO, small_zcdp_world, NANO)):
            for weight, statistics, settings in cases:
                config = world(Path(folder), weight, statistics, **settings)
                ratio = worst_loss(config, honest) / Fraction(config.privacy.ledger_budget, per_one)
                area = ", area" * bool(settings)
                row(f'"participation", {unit}', f'weight = "{weight}"{area}', ", ".join(statistics), ratio)
        for name, settings in (SETTINGS | TREES).items():
            if settings.get("speed.statistics") != ["mean"]:
                config = fleet(Path(folder), **settings)
                worst = max(worst_share(config, seed) for seed in range(8))
                row('"values", ε', name, ", ".join(config.speed.statistics), worst)


def row(relation: str, settings: str, statistics: str, ratio: Fraction) -> None:
    """Print one line; the ratio is rounded up."""
    print(f"| {relation} | {settings} | {statistics} | {-(-ratio * 10_000 // 1) / 10_000:.4f} |", flush=True)


if __name__ == "__main__":
    main()
