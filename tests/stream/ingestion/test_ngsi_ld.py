"""NGSI-LD entities are read by declared paths, in their normalised, concise and simplified forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream.ingestion.decoding import Decoder
from stream.storage.row_store import ROW
from tests.support.builders import SLOT, bus_config

POINT = {"type": "Point", "coordinates": [-97.7, 30.2]}
AT = "2017-03-21T12:00:05Z"
NORMALISED = {
    "id": "urn:ngsi-ld:Vehicle:17",
    "type": "Vehicle",
    "location": {"type": "GeoProperty", "value": POINT, "observedAt": AT},
    "speed": {"type": "Property", "value": 30.5, "unitCode": "KMH", "observedAt": AT},
    "@context": ["https://uri.etsi.org/ngsi-ld/v1/ngsi-ld-core-context.jsonld"],
}
FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "normalised": (
        NORMALISED,
        {
            "time": "location.observedAt",
            "lat": "location.value.coordinates.1",
            "lng": "location.value.coordinates.0",
            "value": "speed.value",
        },
    ),
    "concise": (
        NORMALISED | {"location": POINT, "speed": {"value": 30.5, "unitCode": "KMH", "observedAt": AT}},
        {
            "time": "speed.observedAt",
            "lat": "location.coordinates.1",
            "lng": "location.coordinates.0",
            "value": "speed.value",
        },
    ),
    "simplified": (
        {"id": NORMALISED["id"], "type": "Vehicle", "location": POINT, "speed": 30.5, "observationDateTime": AT},
        {
            "time": "observationDateTime",
            "lat": "location.coordinates.1",
            "lng": "location.coordinates.0",
            "value": "speed",
        },
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_an_entity_gives_the_row_of_its_vehicle(name: str, tmp_path: Path) -> None:
    entity, paths = FORMS[name]
    config = bus_config(tmp_path, **{"feed.format": "declared", "feed.fields": {"user": "id"} | paths})
    decoder = Decoder(config, bytes(32))
    batch = decoder.decode([json.dumps(entity).encode(), json.dumps([entity]).encode()], SLOT * 1_000_000 + 10_000_000)
    row, again = batch.rows
    assert row == again, "an array of one entity is that entity"
    assert row.dtype == ROW
    assert (row["time"], row["lat"], row["lng"]) == (SLOT * 1_000_000 + 5_000_000, 302_000_000, -977_000_000)
    assert row["value"] == 3050
    assert not len(batch.refused)
