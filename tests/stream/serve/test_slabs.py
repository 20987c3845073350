"""Histograms are checked in slabs: the answer is that of the whole schema, and no single check is long."""

import copy
import json
from random import Random
from typing import Any

import pytest

from stream.messages.message import SPATIAL_HISTOGRAM, validator
from stream.serve import received
from stream.serve.received import MAX_ROW, SLAB, is_histogram
from tests.stream.serve.made_windows import histogram_message

SIDE = 400
EULER = {
    "kind": "euler",
    "components": [[2] * (2 * SIDE - 1)] * (2 * SIDE - 1),
    "drawn": [[-1] * (2 * SIDE - 1)] * (2 * SIDE - 1),
    "variance": 2.0,
    "grade": "covert",
}
EDGES = list(range(SIDE + 1))
GRID = {"kind": "grid", "x_edges": EDGES, "y_edges": EDGES, "counts": [[1.5] * SIDE] * SIDE, "variances": 2.0}
PARTS = 20_001
PARTITION = {
    "kind": "partition",
    "boxes": [[i // 256, i // 256 + 1, i % 256, i % 256 + 1] for i in range(PARTS)],
    "counts": [0.5] * PARTS,
    "variances": [2.0] * PARTS,
    "sparse": {"counts": [0.0] * PARTS, "expected": [0.1] * PARTS, "below": 3.0},
    "noise": {"children": [PARTS] + [0] * PARTS, "variances": [2.0], "draw": [0] * (PARTS + 1)},
}
STRUCTURES = [EULER, GRID, PARTITION]


MESSAGE: dict[str, Any] = json.loads(histogram_message("bus", "ug").value)
WRONG: list[Any] = ["1", None, {}, 1e300, [[1]]]


def body_of(structure: Any) -> dict[str, Any]:
    return MESSAGE | {"structure": structure}


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure["kind"])
def test_no_check_of_a_large_histogram_is_of_more_values_than_a_slab_and_a_row(structure, monkeypatch):
    most = []

    class Counting:
        def is_valid(self, body: dict[str, Any]) -> bool:
            nodes = [body["structure"], *(v for v in body["structure"].values() if isinstance(v, dict))]
            arrays = [v for node in nodes for v in node.values() if isinstance(v, list)]
            most.append(max(sum(len(row) if isinstance(row, list) else 1 for row in array) for array in arrays))
            return bool(validator(SPATIAL_HISTOGRAM).is_valid(body))

    monkeypatch.setattr(received, "validator", lambda _: Counting())
    assert is_histogram(body_of(structure))
    assert len(most) > 1
    assert max(most) <= SLAB + MAX_ROW


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure["kind"])
def test_one_wrong_value_anywhere_in_an_array_is_noticed(structure):
    random = Random(7)
    for wrong in WRONG:
        changed = copy.deepcopy(structure)
        node = random.choice([changed, *(value for value in changed.values() if isinstance(value, dict))])
        name = random.choice(sorted(name for name, value in node.items() if isinstance(value, list)))
        place = random.randrange(len(node[name]))
        node[name][place] = wrong
        assert not is_histogram(body_of(changed)), (name, place, wrong)


def test_what_is_no_message_no_structure_and_a_row_longer_than_any_grid_has_are_refused():
    too_long = GRID | {"counts": [[1.0] * (MAX_ROW + 1)]}
    structures = [None, [None], {}, {"kind": "grid"}, {"kind": "euler", "components": []}, too_long]
    for body in (None, [], 3, {}, {"structure": [1] * 100_000}, *map(body_of, structures)):
        assert not is_histogram(body), str(body)[:80]
    assert is_histogram(body_of(GRID | {"counts": [[1.0] * MAX_ROW]}))
