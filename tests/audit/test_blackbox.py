"""The audit itself, on mechanisms whose ε is known exactly. How often chance alone fails this suite: less than once in
a thousand runs.

The noise of statistical tests is recorded (:mod:`tests.support.tapes`), so a correct mechanism that passed once always
passes. A test whose samples are drawn anew in every run states its α in the marker ``false_alarm``, and the markers of
all tests of the run are added up here.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpcore.noise import Noise
from stream.local import REPO_ROOT
from tests.audit.blackbox import N, Replayed, assert_caught, assert_private, epsilon_lower_bound, half_scale


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


SENSITIVITY, SCALE = 3, (3, 1)
"""ε = 1."""


def test_discrete_laplace_is_private_and_half_the_scale_is_not():
    for noise, check in ((Noise(), assert_private), (half_scale(), assert_caught)):
        one = noise.discrete_laplace(*SCALE, N)
        other = SENSITIVITY + noise.discrete_laplace(*SCALE, N)
        check(epsilon_lower_bound(one, other), 1.0)


def test_reusing_a_seed_for_two_numbers_is_caught():
    """One user moves the first of two released numbers only; their difference must still be noisy.

    n = 400 with replayed noise, whose difference tells for certain: the bound is then above 2.8 with power 1.
    """

    def outputs(shift: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.column_stack([shift + one, shift + one - other])

    def fresh(shift: int) -> np.ndarray:
        return outputs(shift, *(Noise().discrete_laplace(*SCALE, N) for _ in range(2)))

    def replayed(shift: int) -> np.ndarray:
        pairs = [[noise.discrete_laplace(*SCALE, 1)[0] for noise in Replayed().fresh()] for _ in range(400)]
        return outputs(shift, *np.array(pairs).T)

    assert_private(epsilon_lower_bound(fresh(0), fresh(SENSITIVITY)), 1.0)
    assert_caught(epsilon_lower_bound(replayed(0), replayed(SENSITIVITY)), 1.0)


@pytest.mark.false_alarm(2e-6)
@pytest.mark.parametrize("scale", [1, 7, 40])
def test_opendp_draws_from_the_same_distribution(scale):
    """Two-sample χ², n = 20 000 of theirs, fresh in every run, α = 1e-6; a scale 20 % off fails with power > 1 -
    1e-6."""
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l1_distance(T=int)
    theirs = np.array(opendp.m.make_laplace(*space, scale=float(scale))([0] * 20_000))
    ours = Noise().discrete_laplace(scale, 1, 20_000)
    wrong = Noise().discrete_laplace(12 * scale, 10, 20_000)

    def p_value(a: np.ndarray, b: np.ndarray) -> float:
        edges = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 25)))
        table = np.array([np.histogram(side, bins=[-np.inf, *edges[1:-1] + 0.5, np.inf])[0] for side in (a, b)])
        return float(stats.chi2_contingency(table[:, table.sum(axis=0) > 10]).pvalue)

    assert p_value(ours, theirs) > 1e-6
    assert p_value(wrong, theirs) < 1e-6


MOST = 1e-3
"""Bound on the probability that a run of the whole suite fails by chance."""
JUDGES = {"binomtest", "chisquare", "chi2_contingency", "ks_2samp", "kstest", "ppf", "isf", "pvalue"}
"""Names of scipy's that turn samples into a verdict."""
FRESH = {"opendp"}
"""Libraries whose samples nobody can record."""
FILES = sorted((REPO_ROOT / "tests").rglob("test_*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(node: ast.AST) -> set[str]:
    plain = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return plain | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def statistical_tests(path: Path) -> Iterator[ast.FunctionDef]:
    """Tests of a file that judge samples, by themselves or through functions of the file."""
    functions = [node for node in parsed(path).body if isinstance(node, ast.FunctionDef)]
    judging: set[str] = set(JUDGES)
    while more := {function.name for function in functions if names_in(function) & judging} - judging:
        judging |= more
    return (function for function in functions if function.name.startswith("test") and function.name in judging)


def is_marked(function: ast.FunctionDef) -> bool:
    return any("false_alarm" in names_in(decorator) for decorator in function.decorator_list)


def draws_fresh(function: ast.FunctionDef, module: ast.AST) -> bool:
    """Whether it uses a library of :data:`FRESH`, imported inside it or by its file."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.Import)]
    aliases = {
        alias.asname or alias.name for node in imports for alias in node.names if alias.name.split(".")[0] in FRESH
    }
    return bool(aliases & names_in(function))


def test_every_test_that_judges_fresh_samples_states_how_often_it_fails_by_chance():
    """Noise of our own is recorded, whichever test draws it: no claim about drawn numbers can fail by chance."""
    problems = [
        f"{path.relative_to(REPO_ROOT)}::{function.name}"
        for path in FILES
        if any(library in path.read_text(encoding="utf-8") for library in FRESH)
        for function in statistical_tests(path)
        if not is_marked(function) and draws_fresh(function, parsed(path))
    ]
    assert not problems, "mark the test: " + ", ".join(problems)


def test_no_generator_of_a_test_starts_anew_in_every_run():
    seedless = [
        f"{path.relative_to(REPO_ROOT)}:{node.lineno}"
        for path in sorted((REPO_ROOT / "tests").rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and not node.args and not node.keywords and "default_rng" in names_in(node.func)
    ]
    assert not seedless, f"give it a seed: {seedless}"


def test_the_false_alarms_of_all_tests_together_are_below_one_in_a_thousand_runs(request):
    marks = [mark for item in request.session.items for mark in item.iter_markers("false_alarm")]
    assert sum(mark.args[0] for mark in marks) < MOST


def test_a_statistical_test_is_known_by_what_it_calls_also_through_a_helper(tmp_path):
    file = tmp_path / "test_planted.py"
    file.write_text(
        "import opendp.prelude as dp\n"
        "def p(x): return stats.chisquare(x).pvalue\n"
        "def test_direct(): assert stats.binomtest(1, 2).pvalue > 0.1\n"
        "def test_by_helper(): assert p(dp.m.make()) > 0.1\n"
        "def test_exact(): assert 1 + 1 == 2\n"
    )
    tests = {function.name: function for function in statistical_tests(file)}
    assert set(tests) == {"test_direct", "test_by_helper"}
    module = ast.parse(file.read_text())
    assert [name for name in tests if draws_fresh(tests[name], module)] == ["test_by_helper"]
