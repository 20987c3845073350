"""CHOP-USER equals a literal reading of its specification, and its sweeps keep what a trial of every K would."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from dpcore.contributions import Counts
from dpcore.suppression import (
    LEAST_OBJECTIVE_COST,
    STATISTICS,
    departure_error,
    suppress,
    sweep_chop_user,
    unsuppressed_noise,
    worst_case_error,
)
from tests.dpcore.programs import counts_of


def random_matrix(rng: np.random.Generator) -> np.ndarray:
    shape = (rng.integers(1, 9), rng.integers(1, 8))
    return rng.integers(1, 6, shape) * (rng.random(shape) < rng.uniform(0.2, 1.0))


def cities(seed: int, number: int) -> Iterator[tuple[np.ndarray, Counts]]:
    """Random matrices that are not empty, and their counts."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        matrix = random_matrix(rng)
        if matrix.any():
            yield matrix, counts_of(matrix)


def cell_error(total: int, kept: list[int], epsilon: float, statistics) -> float:
    bias, noise = worst_case_error(np.array([total]), np.array([sum(kept)]), np.array([max(kept)]), epsilon, statistics)
    return float(bias[0] + noise[0])


def naive(matrix, epsilon, statistics, min_users=1):
    """S8 word by word on a dense matrix."""
    m = matrix[matrix.any(axis=1)][:, matrix.any(axis=0)].copy()
    g = m.copy()
    users, cells = m.shape
    threshold = max(
        float(worst_case_error(m[:, [c]].sum(0), m[:, [c]].sum(0), m[:, [c]].max(0), epsilon, statistics)[1][0])
        for c in range(cells)
    )
    K = int((g > 0).sum(axis=1).max())
    while K > 1:
        saved = g.copy()
        failed = False
        for user in range(users):
            if (g[user] > 0).sum() != K:
                continue
            options = []
            for c in np.flatnonzero(g[user]):
                after = g[:, c].copy()
                after[user] = 0
                if (after > 0).sum() >= min_users:
                    kept = [int(x) for x in after if x > 0]
                    options.append((cell_error(int(m[:, c].sum()), kept, epsilon, statistics), int(c)))
            if not options or min(options)[0] > threshold:
                failed = True
                break
            g[user, min(options)[1]] = 0
        if failed:
            g = saved
            break
        K -= 1
    return g, K, threshold


def dense(counts: Counts, samples: np.ndarray) -> np.ndarray:
    out = np.zeros((counts.n_users, counts.n_cells), dtype=np.int64)
    out[counts.pair_user, counts.pair_cell] = samples
    return out


@pytest.mark.parametrize("statistics", [("mean",), ("variance",), STATISTICS])
def test_equals_the_literal_specification_on_thousands_of_small_cases(statistics):
    """Samples of 1 to 5 give many ties. Users leave while no cell's error passes the largest noise of the start."""
    rng = np.random.default_rng(20)
    for matrix, counts in cities(20, 500):
        epsilon, min_users = float(rng.choice([0.1, 0.5, 2.0])), int(rng.integers(1, 3))
        expected, K, threshold = naive(matrix, epsilon, statistics, min_users)
        noise = unsuppressed_noise(counts, epsilon * 1e6, statistics)
        suppression = suppress(counts, epsilon * 1e6, statistics=statistics, min_users=min_users, threshold=noise)
        assert np.array_equal(dense(counts, suppression.samples), expected)
        assert suppression.max_cells == K
        assert suppression.worst_error <= threshold * (1 + 1e-12)
        assert noise == threshold


@pytest.mark.parametrize("statistics", [("mean",), ("variance",), STATISTICS])
def test_the_error_of_a_departure_is_the_worst_case_error(statistics):
    """Every (N, n, L) up to N = 40."""
    for epsilon in (0.01, 0.5, 4.0):
        error = departure_error("mean" in statistics, "variance" in statistics, epsilon)
        for total in range(1, 41):
            for largest in range(1, total + 1):
                retained = np.arange(largest, total + 1)
                totals, most = (np.full(len(retained), value) for value in (total, largest))
                bias, noise = worst_case_error(totals, retained, most, epsilon, statistics)
                errors = np.array([error(total, n, largest) for n in retained.tolist()])
                assert np.allclose(errors, bias + noise, rtol=1e-12, atol=0.0)


def test_errors_match_brute_force_over_extreme_values():
    """Bias and sensitivity of both statistics against every assignment of {0, 1} to the samples of one cell."""
    for sizes in [(1,), (2, 1), (3, 2), (2, 2, 3), (4, 1, 1), (1, 1, 1, 1, 1)]:
        for kept in itertools.product(*[range(s + 1) for s in sizes]):
            if not sum(kept):
                continue
            total, retained = sum(sizes), sum(kept)
            keep = np.concatenate([np.arange(s) < k for s, k in zip(sizes, kept, strict=True)])
            owner = np.repeat(np.arange(len(sizes)), sizes)
            values = np.array(list(itertools.product((0, 1), repeat=total)))
            mean, variance = values[:, keep].mean(1), values[:, keep].var(1)
            for name, released, truth in (("mean", mean, values.mean(1)), ("variance", variance, values.var(1))):
                bias, noise = worst_case_error(
                    np.array([total]), np.array([retained]), np.array([max(kept)]), 1.0, (name,)
                )
                assert bias[0] == pytest.approx(np.abs(released - truth).max())
                moved = 0.0
                for user in range(len(sizes)):
                    others = values[:, owner != user] @ (1 << np.arange((owner != user).sum()))
                    for group in np.unique(others):
                        here = released[others == group]
                        moved = max(moved, here.max() - here.min())
                assert noise[0] == pytest.approx(moved)
    four, three = np.array([4]), np.array([3])
    bias, _ = worst_case_error(four, three, three, 1.0, ("variance",))
    assert bias[0] == 3 / 16 < 2 * 2 / 16, "the talk on [C] prints its two cases the wrong way round"


def test_a_sweep_at_its_limit_keeps_the_best_of_what_it_finished_and_says_so():
    """Whatever the limit, the cost exceeds it by at most one step of a user, and the unsuppressed plan is always a
    candidate.
    """
    counts = counts_of(random_matrix(np.random.default_rng(25)))
    whole = sweep_chop_user(counts, 2_000_000)
    assert whole.complete
    for limit in range(0, whole.evaluations + 1, 7):
        cut = sweep_chop_user(counts, 2_000_000, max_evaluations=limit)
        assert cut.worst_error >= whole.worst_error
        assert not cut.complete or limit >= whole.evaluations
    assert np.array_equal(sweep_chop_user(counts, 2_000_000, max_evaluations=0).samples, counts.samples)
    same = sweep_chop_user(counts, 2_000_000, max_evaluations=whole.evaluations)
    assert same.complete
    assert np.array_equal(same.samples, whole.samples)


def test_the_order_in_which_a_sweep_tries_its_limits_does_not_decide():
    """Ties go to the larger K: the same as trying every K from the largest down and keeping the first of least
    error."""
    for _, counts in cities(26, 300):
        best = None
        for k in range(sweep_chop_user(counts, 2_000_000).max_cells_before, 0, -1):
            plan = suppress(counts, 2_000_000 / k, stop_at=k)
            if plan.max_cells <= k and (best is None or plan.worst_error < best.worst_error):
                best = plan
        chosen = sweep_chop_user(counts, 2_000_000)
        assert np.array_equal(chosen.samples, best.samples)
        assert (dense(counts, chosen.samples) > 0).sum(1).max() == chosen.max_cells
        assert chosen.epsilon_per_cell * chosen.max_cells <= 2_000_000 * (1 + 1e-12)


def test_a_sweep_for_an_objective_keeps_the_k_whose_plan_has_the_least_of_it():
    """Users leave the cell of least error times events: as a literal reading of it chooses, for every K."""
    for _, counts in cities(27, 200):
        seen = []

        def objective(samples, counts=counts, seen=seen):
            seen.append(samples)
            kept = np.maximum(counts.by_cell(samples), 1)
            return float((counts.max_by_cell(samples) / kept).sum() - 0.1 * samples.sum() / counts.samples.sum())

        chosen = sweep_chop_user(counts, 2_000_000, statistics=("mean",), objective=objective)
        errors = [objective(samples) for samples in seen[:]]
        assert objective(chosen.samples) == min(errors)
        assert any(np.array_equal(samples, counts.samples) for samples in seen), "nothing suppressed is a candidate"
        for samples in seen:
            most = int((dense(counts, samples) > 0).sum(1).max())
            assert np.array_equal(samples, by_events(counts, most, 2.0 / most))


def by_events(counts: Counts, most: int, epsilon: float) -> np.ndarray:
    """Every user with more than ``most`` cells leaves, level by level, the cell whose events times error are least
    then."""
    matrix = dense(counts, counts.samples)
    kept = matrix.copy()
    for level in range(int((matrix > 0).sum(1).max()), most, -1):
        for user in np.flatnonzero((kept > 0).sum(1) == level):
            costs = {}
            for cell in np.flatnonzero(kept[user]):
                others = [int(n) for n in np.delete(kept[:, cell], user) if n]
                if others:
                    total = int(matrix[:, cell].sum())
                    costs[cell] = total * min(1.0, cell_error(total, others, epsilon, ("mean",)))
            kept[user, min(costs, key=lambda cell: (costs[cell], cell))] = 0
    return kept[counts.pair_user, counts.pair_cell]


def test_a_sweep_for_an_objective_stays_within_its_limit_and_says_so():
    counts = counts_of(np.ones((6, 9), dtype=np.int64) * 3)
    calls = []
    limit = 3 * LEAST_OBJECTIVE_COST
    cut = sweep_chop_user(counts, 2_000_000, max_evaluations=limit, objective=lambda samples: calls.append(1) or 0.0)
    assert (cut.complete, len(calls)) == (False, 2)
    assert cut.evaluations <= limit
