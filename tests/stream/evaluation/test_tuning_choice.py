"""What ``hexveil tune`` chooses and states, where trials come out as a table says: which noise is lucky cannot be
arranged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from dpcore.accounting import epsilon_of_rho
from stream.cli.tune_report import print_tuning
from stream.config import Config, load_config
from stream.evaluation.leading import Outcome, Spending, Want
from stream.evaluation.tuning import EPSILONS, Search, Setting, Trial, Tuning, alternatives, terms_of
from stream.statistics.participation.draw import participation_of
from stream.statistics.plan import Due, Plan
from stream.storage.row_store import ROW
from stream.terms import Terms
from stream.windows import Slotting
from tests.support import hourly

HOUR = timedelta(hours=1)
WANT = Want(10.0, 0.75)
ZCDP = {
    "privacy": {"accounting": "zcdp", "budget": 12.0, "windows": 20, "delta": 1e-6, "period": "1d"},
}
Width = Callable[[Config, bool], float]
"""Half-width at ε = 1, by configuration and whether the noise is the confirming one."""


def trial_that_costs(config: Config, ledger_budget: int) -> Trial:
    outcome = Outcome(1.0, 0.0, ledger_budget, 5.0, 0.9, 1.0)
    return Trial(Setting.of(config), EPSILONS.index(1.0), outcome, reaches=True, seconds=0.0)


def searched(monkeypatch: pytest.MonkeyPatch, width: Width, most: float) -> Search:
    """A search under "values" in which a window of an hour costs ε and the half-width is ``width`` / ε."""

    def simulated(config: Config, windows: object, want: Want, draws: int, seed: int) -> Outcome:
        epsilon = config.privacy.epsilon
        half_width = width(config, seed == 2) / epsilon
        share = want.share if half_width <= want.half_width else want.share / 2
        return Outcome(epsilon, epsilon, round(epsilon * 1e6), half_width, share, 1.0)

    monkeypatch.setattr("stream.evaluation.tuning.simulate", simulated)
    config = load_config(hourly.BUS, **{"speed.mean_mechanism": "baseline", "speed.allocation": "uniform"} | PLAIN)
    return Search(config, np.zeros(1, ROW), WANT, most, draws=1, seed=1)


PLAIN = {"speed.clipping": "none", "speed.sum_cap": 0.0, "speed.statistics": ["mean"]}


def test_the_written_budget_is_rounded_up_but_never_above_the_limit() -> None:
    config = load_config(hourly.BUS)
    trial = trial_that_costs(config, 12_010_000)
    assert terms_of(config, trial, 12.05) == {"privacy.epsilon": 1.0, "privacy.budget": 12.01}
    assert terms_of(config, trial, 12.1)["privacy.budget"] == 12.1
    assert terms_of(config, trial_that_costs(config, 1_234_567_891), 9999.0)["privacy.budget"] == 1240.0


def test_under_zcdp_the_limit_is_of_the_converted_budget() -> None:
    config = load_config(hourly.RIDERS, **ZCDP)
    terms = terms_of(config, trial_that_costs(config, 2_085_123_456), 11.99)
    assert terms["privacy.budget"] == epsilon_of_rho(2_085_123_456, 1e-6) < 11.99, (
        "three digits would be above the limit"
    )
    given = {key.partition(".")[2]: value for key, value in terms.items()}
    written = load_config(hourly.RIDERS, privacy=ZCDP["privacy"] | given)
    assert 2_085_123_456 <= written.privacy.ledger_budget < 2_085_124_000
    assert written.privacy.epsilon >= 1.0
    assert written.privacy.windows == written.privacy.ledger_budget // written.privacy.units(1.0)


@pytest.mark.parametrize("area", [0, 1])
def test_no_setting_that_is_tried_takes_the_area_from_weights_that_it_needs(area: int) -> None:
    """Users who count once in each of their cells move the mean of all cells by more than 1, which no plan allows."""
    shares = {"participation.weight": "share", "participation.area_share": area}
    config = load_config(hourly.RIDERS, **shares, **{"speed.statistics": ["mean"], "speed.post_processing": ["kalman"]})
    tried = list(alternatives(Setting.of(config), config, None))
    weights = {participation_of(Terms.of(setting.applied(config))).layout.weight for setting in tried}
    assert weights == ({"share"} if area else {"share", "user"})


def test_a_setting_without_what_models_percentiles_is_without_the_model() -> None:
    modelling = {"speed.statistics": ["mean", "variance"], "speed.post_processing": ["kalman", "clipped-normal"]}
    config = load_config(hourly.RIDERS, **modelling)
    setting = Setting.of(config)
    assert setting.changes_of(config) == {}
    changed = replace(setting, statistics=("mean",))
    assert changed.changes_of(config) == {"speed.statistics": ("mean",), "speed.post_processing": ("kalman",)}


def test_a_grid_that_other_noise_refutes_leaves_the_choice_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolution 5 is the cheapest under the first noise, and hopeless under the other one."""

    def width(config: Config, confirming: bool) -> float:
        if config.hexagons.resolution == 5:
            return math.inf if confirming else 10.0
        return 20.0

    tuning = searched(monkeypatch, width, most=4.0).run([5, 6], [HOUR])
    assert tuning.chosen is not None
    assert (tuning.chosen.grid, tuning.chosen.confirming) == ((6, HOUR), True)


def test_a_lucky_trial_is_not_the_nearest_and_the_grid_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def width(config: Config, confirming: bool) -> float:
        return 1e6 if confirming else (10.0 if config.hexagons.resolution == 6 else 20.0)

    tuning = searched(monkeypatch, width, most=4.0).run([5, 6], [HOUR])
    assert (tuning.chosen, tuning.beyond, tuning.costed) == (None, None, (6, HOUR))
    assert tuning.nearest is not None
    assert not tuning.nearest.reaches
    print_tuning(tuning, WANT, 4.0, load_config(hourly.BUS), {})
    printed = capsys.readouterr().out
    assert "suffices on H3 6, 1h" in printed
    assert "not confirmed" in printed


def test_the_chosen_trial_has_its_row_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(hourly.BUS)
    first = trial_that_costs(config, 12_000_000)
    chosen = replace(first, confirming=True)
    print_tuning(Tuning((first, chosen), {}, {}, chosen), WANT, 12.0, config, {"privacy.epsilon": 1.0})
    printed = capsys.readouterr().out
    assert "chosen" in printed
    assert "privacy.epsilon = 1.0" in printed


def test_a_dearer_trial_of_less_epsilon_does_not_discard_one_that_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(config: Config, windows: object, want: Want, draws: int, seed: int) -> Outcome:
        epsilon = config.privacy.epsilon
        reaches = epsilon >= 1.0
        budget = 3.0 if reaches else 5.0
        return Outcome(epsilon, budget, round(budget * 1e6), 9.0 if reaches else 11.0, 0.8 if reaches else 0.1, 1.0)

    search = searched(monkeypatch, lambda config, confirming: 1.0, most=4.0)
    monkeypatch.setattr("stream.evaluation.tuning.simulate", simulated)
    best = search.least(Setting.of(load_config(hourly.BUS, **PLAIN)), EPSILONS.index(1.0), 4.0)
    assert best is not None
    assert best.outcome.epsilon == 1.0


def test_resolution_0_cannot_be_merged_and_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(hourly.BUS, **{"hexagons.merge_until": 8.0})
    searched(monkeypatch, lambda config, confirming: 10.0, most=4.0)
    with pytest.raises(ValueError, match="none above resolution 0"):
        Search(config, np.zeros(1, ROW), WANT, 4.0, draws=1, seed=1).run([0], [HOUR])


def test_each_recorded_part_of_a_day_is_priced_by_its_own_slots() -> None:
    """One user in all four slots of an evening, and in two of the fourteen that are recorded of the next day."""
    terms = Terms.of(load_config(hourly.BUS, **{"feed.timezone": "UTC"}))
    slotting, midnight = Slotting(HOUR, timedelta(days=1), "UTC"), 1_490_140_800

    def plan(hour: int, users: list[int]) -> Plan:
        start = midnight + 3600 * hour
        due, charges = Due(terms, slotting.window(start), "test"), np.full(len(users), 10, np.int64)
        return Plan(due=due, budget=0, users=np.array(users, np.uint64), charges=charges)

    evening = [plan(hour, [1]) for hour in range(-4, 0)]
    morning = [plan(hour, [1] if hour in (0, 13) else []) for hour in range(14)]
    for plans, grants in ((evening + morning, 24.0), (evening, 24.0), (morning, math.ceil(20 * 24 / 14) / 10)):
        spending = Spending(10, slotting)
        for each in plans:
            spending.add(each)
        assert spending.ledger_budget() == 10 * grants
