"""Which fixes represent a user: their own alone, the last or spread evenly, whatever the order of rows."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from stream.config.section import BoundingBox
from stream.statistics.histograms.fixes import fixes_of
from tests.support.builders import located_rows

BOX = BoundingBox(south=30.1, west=-97.9, north=30.6, east=-97.5)


def by_hand(rows: np.ndarray, per_user: int) -> list[tuple[int, int, int]]:
    """(user, lat, lng) of the representatives, in plain Python."""
    places: dict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for row in rows.tolist():
        cell, user, time, lat, lng, _ = row
        if 301_000_000 <= lat < 306_000_000 and -979_000_000 <= lng < -975_000_000:
            place = (cell, lat, lng)
            places[user][time] = min(places[user].get(time, place), place)
    fixes = []
    for user in sorted(places):
        in_time = [places[user][time] for time in sorted(places[user])]
        kept = min(per_user, len(in_time))
        fixes += [(user, *in_time[(k + 1) * len(in_time) // kept - 1][1:]) for k in range(kept)]
    return fixes


@pytest.mark.parametrize("per_user", [1, 2, 5, 100])
@pytest.mark.parametrize("seed", range(5))
def test_representatives_are_those_that_plain_python_finds_in_any_order_of_rows(seed: int, per_user: int) -> None:
    """Times repeat with other positions, so that the rule for ties is tested, too."""
    rows = located_rows(seed, 300, users=25)
    rows["time"] -= rows["time"] % 900_000_000
    for mixed in (rows, rows[np.random.default_rng(seed).permutation(len(rows))]):
        fixes = fixes_of(mixed, BOX)
        assert fixes is not None
        chosen = fixes.representatives(per_user)
        assert list(zip(chosen.user.tolist(), chosen.lat.tolist(), chosen.lng.tolist(), strict=True)) == by_hand(
            rows, per_user
        )


def test_a_users_fixes_do_not_depend_on_anybody_else() -> None:
    rows = located_rows(9, 300, users=10)
    everybody = fixes_of(rows, BOX)
    assert everybody is not None
    for user in range(1, 11):
        alone = fixes_of(rows[rows["user"] == user], BOX)
        among = everybody.of(np.array([user], dtype=np.uint64))
        assert alone is not None
        assert alone.digest == among.digest
        assert alone.representatives(3).digest == among.representatives(3).digest


def test_measured_values_decide_nothing() -> None:
    """Under relation "values" neighbours have the same histograms, so histograms cost nothing of that promise."""
    rows = located_rows(2, 200)
    rows["time"] -= rows["time"] % 900_000_000
    other = rows.copy()
    other["value"] = other["value"][::-1]
    one, two = fixes_of(rows, BOX), fixes_of(other, BOX)
    assert one is not None
    assert two is not None
    assert one.digest == two.digest


def test_no_rows_and_no_box_are_nothing() -> None:
    none = fixes_of(located_rows(1, 0), BOX)
    assert none is not None
    assert (len(none), len(none.users), len(none.representatives(3))) == (0, 0, 0)
    assert fixes_of(located_rows(1, 10), None) is None
