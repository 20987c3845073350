"""Results that were asked for last are kept within bounds, and never given for another question."""

import numpy as np
import pytest

from dpcore.allocation import _MOST_RECENT, Sensitivities, _recent, _solved, allocate


def made(weight: float) -> Sensitivities:
    return Sensitivities(np.array([0]), np.array([0]), np.array([4]), np.array([weight]), 1)


def test_what_was_asked_for_lately_is_given_again_and_what_was_longest_ago_is_forgotten():
    beta = np.array([1.0])
    first, second, *_ = [_solved(made(weight), beta, 1e-4, 500) for weight in range(1, _MOST_RECENT + 1)]
    assert _solved(made(1), beta, 1e-4, 500) is first
    assert _solved(made(1), beta, 1e-3, 500) is not first, "another tolerance; it makes the second one forgotten"
    assert _solved(made(1), beta, 1e-4, 500) is first
    assert _solved(made(2), beta, 1e-4, 500) is not second
    assert len(_recent) == _MOST_RECENT


@pytest.mark.parametrize("part", ["row", "user", "delta", "weight", "n_users", "allowances"])
def test_programs_that_differ_anywhere_are_solved_each_for_itself(part):
    columns = {"row": [0, 0, 1], "user": [0, 1, 2], "delta": [4, 2, 8], "weight": [1.0, 2.0]}
    others = {"row": [0, 1, 1], "user": [0, 2, 1], "delta": [4, 3, 8], "weight": [1.0, 3.0]}
    users, allowance = 3, 1_000_000

    def solved(columns: dict[str, list[float]], users: int, allowance: int) -> list[float]:
        program = Sensitivities(**{name: np.array(column) for name, column in columns.items()}, n_users=users)  # type: ignore[arg-type]
        result = allocate(program, np.full(users, allowance))
        return [*result.scales.tolist(), *result.charges.tolist(), result.bound]

    first = solved(columns, users, allowance)
    changed = columns | {part: others[part]} if part in others else columns
    second = solved(changed, users + (part == "n_users"), allowance * (1 + (part == "allowances")))
    assert first != second
    assert solved(columns, users, allowance) == first


def test_a_solution_that_is_given_again_cannot_be_written_to():
    solved = _solved(made(1.0), np.array([1.0]), 1e-4, 500)
    with pytest.raises(ValueError, match="read-only"):
        solved.scales[0] = 0
