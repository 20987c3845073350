"""The public service on a real broker is rebuilt from the topics, marks incomplete windows, and shows nothing from
inside."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import jsonschema
import pytest

from stream.local import REPO_ROOT
from stream.messages.message import HEXAGON_SPEED, LARGEST_NUMBER, WINDOW, digest, schema, with_estimates
from stream.serve.reading.intake import Arrival
from stream.serve.received import received
from stream.serve.window_store import View
from tests.stream.serve.serving import released, serving
from tests.stream.serve.taking import arrivals, outcomes
from tests.support.builders import bus_config
from tests.support.mutations import mutations


def test_the_public_service_imports_neither_redis_nor_anything_from_inside_the_boundary() -> None:
    inside = {
        "redis",
        "stream.storage.row_store",
        "stream.storage.ledger",
        "stream.protocol.release_protocol",
        "stream.ingestion.reader",
        "stream.ingestion.decoding",
        "stream.app",
    }
    for path in (REPO_ROOT / "stream" / "serve").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name == bad or name.startswith(bad + ".") for name in names for bad in inside), path


def test_a_window_is_complete_only_when_marker_count_and_digest_agree(tmp_path: Path) -> None:
    *cells, marker = released(tmp_path)
    view = View()
    assert set(outcomes(view, arrivals((marker, *cells[:-1])))) == {"taken"}
    assert view.find(None, None) is None
    assert outcomes(view, arrivals((cells[0], cells[-1]))) == ["duplicate", "completed"]
    tampered, altered = View(), cells[0]._replace(value=cells[0].value.replace(b'"epsilon":2.0', b'"epsilon":2.5'))
    assert altered != cells[0]
    assert set(outcomes(tampered, arrivals((altered, *cells[1:], marker)))) == {"taken"}
    assert tampered.find(None, None) is None


@pytest.mark.parametrize("topic", [HEXAGON_SPEED, WINDOW])
def test_what_the_view_accepts_and_refuses_is_what_the_schema_says(tmp_path: Path, topic: str) -> None:
    made = released(tmp_path, **{"speed.statistics": ["mean", "p50"], "speed.min_users": 2})
    good = json.loads(next(message.value for message in made if message.topic == topic))
    validator = jsonschema.Draft202012Validator(schema(topic))
    assert received(topic, "good", json.dumps(good).encode()) is not None
    changed = [*mutations(good), good | {"status": "suppressed"}, good | {"cell": "8748"}]
    assert len(changed) > 100
    for number, body in enumerate(changed):
        accepted = received(topic, str(number), json.dumps(body).encode()) is not None
        assert accepted == (validator.is_valid(body) and largest(body) <= LARGEST_NUMBER), body


def largest(body: object) -> float:
    """The largest magnitude of a number in a JSON value."""
    if isinstance(body, dict | list):
        return max(map(largest, body.values() if isinstance(body, dict) else body), default=0.0)
    return abs(body) if isinstance(body, int | float) else 0.0


def test_a_message_without_ce_id_or_of_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    message = released(tmp_path)[0]
    assert received(message.topic, "", message.value) is None
    never = message.value.replace(b"2017-03-21T12", b"2017-03-41T12")
    assert received(message.topic, message.ce_id, never) is None


def test_a_complete_window_takes_nothing_more(tmp_path: Path) -> None:
    made = released(tmp_path)
    view = View()
    assert outcomes(view, arrivals(made, 1))[-1] == "completed"
    altered = [m._replace(value=m.value.replace(b'"epsilon":2.0', b'"epsilon":2.5')) for m in made]
    assert all(changed.value != message.value for changed, message in zip(altered, made, strict=True))
    assert set(outcomes(view, arrivals(made))) == {"duplicate"}
    assert set(outcomes(view, arrivals(altered))) == {"invalid"}


def test_old_windows_are_forgotten_in_the_order_of_their_markers_and_stay_so(tmp_path: Path) -> None:
    made = released(tmp_path)
    view = View(max_windows=2)
    days = [
        [m._replace(value=m.value.replace(b"-21T", b"-%dT" % day), headers=()) for m in made] for day in (23, 21, 22)
    ]
    for number, messages in enumerate(days, 1):
        body = json.loads(messages[-1].value) | {"digest": digest(m.value for m in messages[:-1])}
        messages[-1] = messages[-1]._replace(value=json.dumps(body).encode())
        day = [Arrival(m.topic, f"{number}/{i}", m.value, number) for i, m in enumerate(messages)]
        assert outcomes(view, day)[-1] == "completed"
    assert [window.start[8:10] for window in view.completed()] == ["21", "22"]
    assert outcomes(view, [Arrival(made[0].topic, "late", days[0][0].value, 0)]) == ["forgotten"]


async def test_the_api_serves_what_the_topics_hold(kafka: str, tmp_path: Path, topic_name: str) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    *cells, marker = released(tmp_path, **overrides)
    rubbish = cells[0]._replace(value=b"rubbish")
    async with serving(bus_config(tmp_path, **overrides), (*cells, cells[0], rubbish, marker)) as client:
        windows = (await (await client.get("/api/v1/windows")).json())["windows"]
        assert [window["complete"] for window in windows] == [True]
        start = windows[0]["window"]["start"]
        assert (await (await client.get(f"/api/v1/windows/{start}")).json()) == windows[0]
        query = {"window": start}
        answer = await client.get("/api/v1/hexagons", params=query)
        hexagons = (await answer.json())["hexagons"]
        assert hexagons == [json.loads(with_estimates(message.value)) for message in cells]
        shape = await (await client.get("/api/v1/hexagons", params=query | {"format": "geojson"})).json()
        assert [feature["properties"]["cell"] for feature in shape["features"]] == [m.key.decode() for m in cells]
        for restriction, count in (
            ({"bbox": "0,0,1,1"}, 0),
            ({"bbox": "-180,-90,180,90"}, len(cells)),
            ({"resolution": "7"}, len(cells)),
            ({"resolution": "6"}, 0),
        ):
            answer = await client.get("/api/v1/hexagons", params=query | restriction)
            assert len((await answer.json())["hexagons"]) == count
        newest = await (await client.get("/api/v1/hexagons")).json()
        assert newest["window"]["start"] == start
        history = await (await client.get(f"/api/v1/cells/{cells[0].key.decode()}")).json()
        assert history["releases"] == [json.loads(with_estimates(cells[0].value))]
        metrics = await (await client.get("/metrics")).text()
        assert "hexveil_public_messages_duplicate_total" in metrics
        assert "hexveil_events" not in metrics


@pytest.mark.parametrize("hostile", [b"", b"\xff", b"null", b'{"window":1}', b"[" * 10_000])
def test_hostile_bytes_are_refused_and_never_raise(hostile: bytes) -> None:
    assert received(HEXAGON_SPEED, "x", hostile) is None
