"""The audit itself, on mechanisms whose ε is known exactly. How often chance alone fails this suite: less than once in
a thousand runs.

The noise of statistical tests is recorded (:mod:`tests.support.tapes`), so a correct mechanism that passed once always
passes. A test whose samples are drawn anew in every run states its α in the marker ``false_alarm``, and the markers of
all tests of the run are added up here.
"""

import ast

import numpy as np
import pytest
from scipy import stats

from stream.local.kafka import REPO_ROOT
from tests.audit.blackbox import N, epsilon_lower_bound


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_bound_is_below_the_true_epsilon_and_not_far_below(epsilon):
    rng = np.random.default_rng(1)
    one, other = rng.laplace(0, 1 / epsilon, 4 * N), rng.laplace(1, 1 / epsilon, 4 * N)
    bound = epsilon_lower_bound(one, other)
    assert 0.55 * epsilon < bound.epsilon <= epsilon


def test_false_alarms_are_no_more_frequent_than_alpha_says():
    """n = 300 audits of randomised response at α = 0.05 on a recorded tape; H0 "15 alarms on average" is tested at
    1e-6.

    An audit that refuted three times as often as it says is noticed with power 0.91, five times as often with 1 - 1e-7.
    """
    rng, epsilon = np.random.default_rng(2), 1.0
    truth = np.exp(epsilon) / (1 + np.exp(epsilon))
    alarms = 0
    for _ in range(300):
        one, other = rng.random(400) < truth, rng.random(400) >= truth
        alarms += epsilon_lower_bound(one, other, alpha=0.05).epsilon > epsilon
    assert stats.binomtest(alarms, 300, 0.05, alternative="greater").pvalue > 1e-6


def test_equal_inputs_give_no_evidence_and_disjoint_outputs_give_much():
    rng = np.random.default_rng(1)
    assert epsilon_lower_bound(rng.normal(size=N), rng.normal(size=N)).epsilon < 0.1
    assert epsilon_lower_bound(np.zeros(N), np.ones(N)).epsilon > 5


def test_losses_spread_over_columns_are_added_up():
    """Five columns at ε = 0.4 each: no single column can exceed 0.4."""
    rng = np.random.default_rng(1)
    one, other = rng.laplace(0, 2.5, (4 * N, 5)), rng.laplace(1, 2.5, (4 * N, 5))
    assert 0.41 < epsilon_lower_bound(one, other).epsilon <= 2.0


MOST = 1e-3
"""Bound on the probability that a run of the whole suite fails by chance."""


def unmarked(text: str) -> list[str]:
    """Tests of a module that use opendp, whose samples nobody can record, and state no α."""
    tests = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    sources = {test.name: ast.unparse(test) for test in tests}
    return [name for name, source in sources.items() if ".m.make_" in source and "false_alarm" not in source]


def test_every_test_of_fresh_samples_states_how_often_it_fails_by_chance():
    """Noise of our own is recorded, whichever test draws it, and generators have seeds: nothing else can fail by
    chance."""
    texts = {path: path.read_text(encoding="utf-8") for path in (REPO_ROOT / "tests").rglob("*.py")}
    opendp = {path: unmarked(text) for path, text in texts.items() if "import opendp" in text}
    assert not {path: names for path, names in opendp.items() if names}, "mark them, with 0 where nothing is sampled"
    assert unmarked("import opendp.prelude as dp\ndef test_fresh():\n    dp.m" + ".make_laplace()") == ["test_fresh"]
    assert not [path for path, text in texts.items() if "default_rng(" + ")" in text], "give it a seed"


def test_the_false_alarms_of_all_tests_together_are_below_one_in_a_thousand_runs(request):
    marks = [mark for item in request.session.items for mark in item.iter_markers("false_alarm")]
    assert sum(mark.args[0] for mark in marks) < MOST
