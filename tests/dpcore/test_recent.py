"""Results that were asked for last are kept within bounds, and never given for another question."""

from collections.abc import Callable

import numpy as np
import pytest

from dpcore.allocation import Recent, Sensitivities, _solved, allocate, key_of


def asking(count: int, size: int) -> tuple[Callable[[bytes, int], bytes], list[bytes]]:
    """Asks for a key whose result has so many bytes, and what was computed."""
    recent: Recent[bytes] = Recent(count, size)
    computed: list[bytes] = []

    def ask(key: bytes, size: int) -> bytes:
        def compute() -> tuple[bytes, int]:
            computed.append(key)
            return key, size

        return recent.get(key, compute)

    return ask, computed


def test_what_was_asked_for_lately_is_computed_once():
    ask, computed = asking(count=2, size=100)
    assert [ask(key, 1) for key in (b"a", b"b", b"a", b"c", b"a", b"b")] == [b"a", b"b", b"a", b"c", b"a", b"b"]
    assert computed == [b"a", b"b", b"c", b"b"]


def test_large_results_make_room_for_each_other_and_one_beyond_all_bounds_is_not_kept():
    ask, computed = asking(count=9, size=10)
    for key, size in ((b"a", 6), (b"b", 4), (b"a", 6), (b"c", 5), (b"a", 6), (b"d", 11)):
        assert ask(key, size) == key
    assert computed == [b"a", b"b", b"c", b"a", b"d"]
    ask(b"d", 11)
    assert computed[-2:] == [b"d", b"d"]


@pytest.mark.parametrize("part", ["row", "user", "delta", "weight", "n_users", "allowances"])
def test_programs_that_differ_anywhere_are_solved_each_for_itself(part):
    columns = {"row": [0, 0, 1], "user": [0, 1, 2], "delta": [4, 2, 8], "weight": [1.0, 2.0]}
    others = {"row": [0, 1, 1], "user": [0, 2, 1], "delta": [4, 3, 8], "weight": [1.0, 3.0]}
    users, allowance = 3, 1_000_000

    def solved(columns: dict[str, list[float]], users: int, allowance: int) -> list[float]:
        made = Sensitivities(**{name: np.array(column) for name, column in columns.items()}, n_users=users)  # type: ignore[arg-type]
        result = allocate(made, np.full(users, allowance))
        return [*result.scales.tolist(), *result.charges.tolist(), result.bound]

    first = solved(columns, users, allowance)
    changed = columns | {part: others[part]} if part in others else columns
    second = solved(changed, users + (part == "n_users"), allowance * (1 + (part == "allowances")))
    assert first != second
    assert solved(columns, users, allowance) == first


def test_a_solution_that_is_given_again_cannot_be_written_to():
    made = Sensitivities(np.array([0]), np.array([0]), np.array([4]), np.array([1.0]), 1)
    solved = _solved(made, np.array([1.0]), 1e-4, 500)
    with pytest.raises(ValueError, match="read-only"):
        solved.scales[0] = 0
    assert _solved(made, np.array([1.0]), 1e-4, 500) is solved


def test_keys_tell_columns_from_numbers_types_and_shapes():
    column = np.arange(4)
    keys = [
        key_of(column),
        key_of(column.astype(np.float64)),
        key_of(column.reshape(2, 2)),
        key_of(column[:2], column[2:]),
        key_of(column, steps=1),
        key_of(column, steps=2),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(column[::2]) == key_of(column[::2].copy())
