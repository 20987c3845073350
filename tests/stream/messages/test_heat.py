"""A spatial histogram as a map: boxes that tell what range queries tell."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stream.messages.heat import MOST_PER_SIDE, heat_of
from stream.messages.range_query import count_in, read_histogram
from tests.stream.serve.made_windows import MECHANISMS, histogram_message


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_boxes_tile_the_domain_and_each_says_what_a_range_query_says_of_it(mechanism: str) -> None:
    release = json.loads(histogram_message("riders", mechanism).value)
    features = heat_of(read_histogram(release))
    boxes = np.array([np.ravel([np.min(ring, axis=0), np.max(ring, axis=0)]) for ring in map(_ring, features)])
    west, south, east, north = boxes.T
    assert len(features) == MOST_PER_SIDE**2
    assert (west.min(), south.min(), east.max(), north.max()) == pytest.approx((-98.0, 30.0, -97.4, 30.6))
    assert np.sum((east - west) * (north - south)) == pytest.approx(0.36)
    for number in (0, 1000, 2080, 4095):
        one, box = features[number]["properties"], boxes[number]
        asked = count_in(release, tuple(box.tolist()))
        assert one["value"] == pytest.approx(max(asked["value"], 0.0), abs=0.01)
        assert [one["low"], one["high"]] == pytest.approx(asked["interval"], abs=1)
        assert one["low"] <= one["value"] <= max(one["high"], 0)
        square_km = (box[3] - box[1]) * (box[2] - box[0]) * 111.195**2 * np.cos(np.radians(30.3))
        assert one["density"] == pytest.approx(one["value"] / square_km, rel=2e-3, abs=1e-3)


def _ring(feature: dict) -> list[list[float]]:
    return feature["geometry"]["coordinates"][0]
