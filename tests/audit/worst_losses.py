"""``python -m tests.audit.worst_losses``: the table of research/experiments.md, worst loss over charge of every forced
transcript. Exact. What the shipped draw of spatial histograms costs each user over three windows, exact, beside what
they are charged for them: for "singular", whose noise is added to the counts themselves.

Under "participation" the transcripts are those of all 4⁹ worlds of 3 users, 3 windows and 2 cells, against the budget
that pays for them, and with residual clipping those of random windows that lack each user; under "values" those of
random windows in which each user's values are at 0, at U and at random, against each user's charge. Histograms: random
windows that lack each user.
"""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dpcore.accounting import NANO
from stream.config import Config
from stream.statistics.histograms.histograms import contributing, draw_histograms, exact_counts
from stream.statistics.plan import Plan
from stream.statistics.window_rows import WindowRows
from tests.audit import values_transcripts as values
from tests.audit import worlds
from tests.audit.shipped import World
from tests.dpcore.silence import Asked
from tests.support.builders import SLOT, located_rows, with_histograms

WINDOWS = 3


def integers(plan: Plan, read: WindowRows) -> np.ndarray:
    """What "singular" adds noise to."""
    return np.asarray(exact_counts(plan.terms.histogram, contributing(plan, read.fixes)))


def worst_share_of_histograms(config: Config, seed: int = 0) -> Fraction:
    """The largest part of their charges for histograms that any user who leaves loses over the windows."""
    world, paid, lost = World(config), Counter[int](), dict[int, Fraction]()
    for number in range(WINDOWS):
        slot = SLOT + 3600 * number
        rows = located_rows(seed + number, 60, users=8, slot=slot)
        plan, read = world.plan(rows, slot)
        draw_histograms(plan, read.fixes, asked := Asked())
        (rate,) = set(asked.rates)
        exact, terms = integers(plan, read), plan.terms.histogram
        payers = set(contributing(plan, read.fixes).users.tolist())
        for user in plan.users.tolist():
            moved = np.abs(exact - integers(*world.plan(rows[rows["user"] != user], slot))).sum()
            lost[user] = lost.get(user, Fraction(0)) + int(moved) * rate
            paid[user] += terms.cost * (user in payers)
        world.charge(plan)
    assert max(world.spent.values()) <= config.privacy.ledger_budget
    return max(loss * 1_000_000 / paid[user] if paid[user] else loss * 10**9 for user, loss in lost.items())


def main() -> None:
    """Print the table."""
    print("| relation | settings | statistics | worst loss / charge |\n|---|---|---|---|")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for unit, cases, small, per_one in (
            ("ε", worlds.OF_EPSILON, worlds.small_world, 10**6),
            ("ρ", worlds.OF_RHO, worlds.small_zcdp_world, NANO),
        ):
            for weight, statistics, settings in cases:
                config = small(folder, weight, statistics, **settings)
                ratio = worlds.worst_loss(config, worlds.honest) / Fraction(config.privacy.ledger_budget, per_one)
                area = ", area" * bool(settings)
                row(f'"participation", {unit}', f'weight = "{weight}"{area}', ", ".join(statistics), ratio)
        for weight in ("share", "user", "sample"):
            for unit, accounting in (("ε", "pure"), ("ρ", "zcdp")):
                shares = worlds.worst_shares(worlds.config_of(folder, weight, accounting))
                row(f'"participation", {unit}', f'residual, weight = "{weight}"', "mean, p50", max(shares))
        for case in values.OF_EPSILON | values.OF_RHO:
            config, worst = values.settings_of(case, folder), Fraction(0)
            for seed in range(2):
                losses, after = values.worst_losses(config, 10 * seed)
                worst = max(worst, *(loss / after.spent[user] for user, loss in losses.items() if user in after.spent))
            unit = "ρ" if case in values.OF_RHO else "ε"
            row(f'"values", {unit}', case, ", ".join(config.speed.statistics), worst)
        for relation in ("values", "participation"):
            for fixes in (1, 3):
                changes = {"privacy.budget": 6.5, "histogram.fixes_per_user": fixes}
                config = with_histograms(relation, folder, ["singular"], **changes)
                row(f'"{relation}", ε', f"{fixes} fixes of a user", "histogram", worst_share_of_histograms(config))


def row(relation: str, settings: str, statistics: str, ratio: Fraction) -> None:
    """Print one line; the ratio is rounded up."""
    print(f"| {relation} | {settings} | {statistics} | {-(-ratio * 10_000 // 1) / 10_000:.4f} |", flush=True)


if __name__ == "__main__":
    main()
