"""The public service on a real broker: rebuilt from the topics, honest about what is complete, nothing from inside."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path

import jsonschema
import pytest
from aiohttp.test_utils import TestClient, TestServer

from dpcore.noise import Noise
from stream.config import KafkaConfig
from stream.local import REPO_ROOT
from stream.pipeline import build_messages
from stream.publishing import make_producer
from stream.releases import HEXAGON_SPEED, Message, schema
from stream.serve.api import make_app
from stream.serve.view import View
from stream.topics import create_topics
from tests.builders import bus_config, random_rows
from tests.stream.test_pipeline import planned


def released(tmp_path: Path, **overrides: object) -> list[Message]:
    config = bus_config(tmp_path, **overrides)
    plan, held = planned(config, random_rows(1, 200))
    return build_messages(plan, held, Noise(), config)


def test_the_public_service_imports_neither_redis_nor_anything_from_inside_the_boundary() -> None:
    inside = {
        "redis",
        "stream.state",
        "stream.ledger",
        "stream.closing",
        "stream.ingest",
        "stream.events",
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
    for message in (marker, *cells[:-1]):
        assert view.add(message.topic, message.ce_id, message.value) == "taken"
    assert view.find(None, None) is None
    assert view.add(cells[0].topic, cells[0].ce_id, cells[0].value) == "duplicate"
    assert view.add(cells[-1].topic, cells[-1].ce_id, cells[-1].value) == "completed"
    tampered = View()
    for message in (*cells, marker):
        body = message.value.replace(b'"clamped":false', b'"clamped":true ') if message is cells[0] else message.value
        assert tampered.add(message.topic, message.ce_id, body) != "completed" or body == message.value
    if b'"clamped":false' in cells[0].value:
        assert tampered.find(None, None) is None


def test_what_the_view_accepts_and_refuses_is_what_the_schema_says(tmp_path: Path) -> None:
    good = json.loads(released(tmp_path)[0].value)
    validator = jsonschema.Draft202012Validator(schema(HEXAGON_SPEED))
    mutations = [good, {}, [], 3, None]
    for name in good:
        mutations += [{k: v for k, v in good.items() if k != name}, good | {name: {"x": 1}}]
    mutations += [good | {"extra": 1}, good | {"status": "maybe"}, good | {"mean": good["mean"] | {"more": 1}}]
    for number, body in enumerate(mutations):
        accepted = View().add(HEXAGON_SPEED, str(number), json.dumps(body).encode()) != "invalid"
        assert accepted == validator.is_valid(body), body


async def test_the_api_serves_what_the_topics_hold(kafka: str, tmp_path: Path, topic_name: str) -> None:
    overrides = {"feed.name": topic_name, "kafka.bootstrap": kafka}
    config = bus_config(tmp_path, **overrides)
    await create_topics(config)
    *cells, marker = released(tmp_path, **overrides)
    producer = make_producer(KafkaConfig(bootstrap=kafka))
    await producer.start()
    for message in (*cells, cells[0], marker):
        await producer.send_and_wait(message.topic, message.value, key=message.key, headers=list(message.headers))
    await producer.send_and_wait(HEXAGON_SPEED, b"rubbish", headers=[("ce_id", b"r")])
    async with TestClient(TestServer(make_app(config))) as client:
        for _ in range(200):
            if (await client.get("/readyz")).status == 200:
                break
            await asyncio.sleep(0.1)
        windows = (await (await client.get("/api/v1/windows", params={"feed": topic_name})).json())["windows"]
        assert [window["complete"] for window in windows] == [True]
        start = windows[0]["window"]["start"]
        query = {"window": start, "feed": topic_name}
        answer = await client.get("/api/v1/hexagons", params=query)
        assert [h["cell"] for h in (await answer.json())["hexagons"]] == [m.key.decode() for m in cells]
        tag = answer.headers["ETag"]
        assert (await client.get("/api/v1/hexagons", params=query, headers={"If-None-Match": tag})).status == 304
        shape = await (await client.get("/api/v1/hexagons", params=query | {"format": "geojson"})).json()
        assert len(shape["features"]) == len(cells)
        assert (
            shape["features"][0]["geometry"]["coordinates"][0][0]
            == shape["features"][0]["geometry"]["coordinates"][0][-1]
        )
        empty = await client.get("/api/v1/hexagons", params=query | {"bbox": "0,0,1,1"})
        assert (await empty.json())["hexagons"] == []
        history = await (await client.get(f"/api/v1/cells/{cells[0].key.decode()}", params={"feed": topic_name})).json()
        assert history["releases"] == [json.loads(cells[0].value)]
        for bad in (
            "/api/v1/cells/zz",
            "/api/v1/windows?limit=0",
            "/api/v1/hexagons?bbox=1,2",
            "/api/v1/hexagons?window=x",
        ):
            problem = await client.get(bad)
            assert problem.status in (400, 404)
            assert problem.content_type == "application/problem+json"
        stream = await client.get("/api/v1/stream", headers={"Last-Event-ID": "0"})
        seen = b""
        while b"event: window" not in seen:
            seen += await asyncio.wait_for(stream.content.readany(), 10)
        assert b"id: 1" in seen
        stream.close()
        metrics = await (await client.get("/metrics")).text()
        assert "hexveil_public_messages_duplicate_total" in metrics
        assert "hexveil_events" not in metrics
    await producer.stop()


@pytest.mark.parametrize("hostile", [b"", b"\xff", b"null", b'{"window":1}', b"[" * 10_000])
def test_hostile_bytes_are_refused_and_never_raise(hostile: bytes) -> None:
    assert View().add(HEXAGON_SPEED, "x", hostile) == "invalid"
