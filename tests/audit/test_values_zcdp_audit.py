"""Relation "values" under pure ε, under zCDP and with rolling grants on the shipped path: forced transcripts over three
windows, in exact arithmetic.

One world is released with real noise, window after window: ledger, plan, draw, messages, memory. Its transcript is
forced on worlds in which one user has other values everywhere. Given the same outputs, their plans must be the same
bytes, and what they add noise to may differ by no more than that user is charged: Σ Δ²·s²/(2t²), under pure ε Σ Δ·s/t,
over the integers and scales that the shipped draw combines. No sampling; power 1. Planted bugs must show.
"""

from typing import Any

import msgspec
import numpy as np
import pytest

from stream.statistics.merging import by_planned_cells
from stream.statistics.plan import Plan
from stream.statistics.window_release import plan_window, speed_of
from stream.statistics.window_rows import WindowRows
from tests.audit.shipped import recorded
from tests.audit.values_transcripts import (
    MERGED,
    OF_A_WINDOW,
    PURE,
    PURE_RESIDUAL,
    SETTINGS,
    TREES,
    U,
    World,
    combined,
    fleet,
    integers_of,
    others,
    overspent,
    settings_of,
    worst_losses,
)
from tests.support.builders import SLOT, live_config, random_rows
from tests.support.nightly import nightly, nightly_but


@pytest.mark.parametrize("seed", nightly_but([0], [0, 10]))
@pytest.mark.parametrize(
    "name",
    [
        nightly(name) if name == "merged" else name
        for name in (*OF_A_WINDOW, *TREES, *MERGED, *SETTINGS, PURE, PURE_RESIDUAL)
    ],
)
def test_no_user_loses_more_over_three_windows_than_they_are_charged(tmp_path, name, seed, record_property):
    losses, world = worst_losses(settings_of(name, tmp_path), seed)
    shares = (loss / world.spent[user] for user, loss in losses.items() if user in world.spent)
    record_property("loss", {"worst": float(max(shares)), "charged": 1.0})
    assert not overspent(losses, world)
    assert max(losses.values()) > 0.2 * max(world.spent.values()), "the audit found next to nothing"


def test_the_noise_that_is_drawn_has_the_law_that_was_charged_for(tmp_path):
    """400 draws of six cells: the mean of (noise/σ)² is 1 ± 5·√(2/n) (α = 6·10⁻⁷); half the scale gives ¼, Laplace
    noise 2."""
    plan, read = World(live_config(tmp_path)).plan(random_rows(3, 40, users=7), SLOT)
    contributions, noise = by_planned_cells(plan, read.as_planned(plan).contributions), recorded(8)
    with combined() as seen:
        for _ in range(400):
            speed_of(plan.terms).draw(plan, contributions, noise)
    squares = np.square(np.array(seen.noise) / plan.scales.values)
    assert squares.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / squares.size))


def test_ranges_around_the_true_data_are_caught(tmp_path):
    def around_the_truth(read: WindowRows, *given: Any, **named: Any) -> Plan:
        plan = plan_window(read, *given, **named)
        counts = read.contributions.counts
        means = read.contributions.cell_sums() // counts.by_cell(counts.samples)
        part = msgspec.structs.replace(
            plan.values, lower=np.clip(means - 100, 0, U - 200), upper=np.clip(means - 100, 0, U - 200) + 200
        )
        return msgspec.structs.replace(plan, values=part)

    with pytest.raises(AssertionError, match="the plan looked at values"):
        worst_losses(live_config(tmp_path), 0, around_the_truth)


@pytest.mark.parametrize(("build", "short"), [(fleet, 1), (live_config, None)], ids=["one µε short", "nothing left"])
def test_a_user_who_cannot_pay_is_not_in_the_numbers_and_pays_nothing(tmp_path, build, short):
    """With a whole grant, or half of the budget, their values change the numbers and are charged."""
    rows, config = random_rows(3, 40, users=7), build(tmp_path)
    user, budget = int(rows["user"][0]), config.privacy.ledger_budget
    enough = config.window_grant if short else budget // 2
    for left, absent in ((enough - short if short else 0, True), (enough, False)):
        world = World(config)
        world.spent[user] = budget - left
        plan, read = world.plan(rows, SLOT)
        exact = integers_of(plan, read, recorded(1))[0]
        assert (plan.charges[plan.users == user].tolist() == [0]) == absent
        moved = [exact - integers_of(plan, world.plan(of, SLOT)[1], recorded(1))[0] for of in others(rows, user, 1)]
        assert np.any(moved) != absent
