"""What docs/versions.md promises never to change: old readers, old ledgers and old plans still work.

``tests/golden/never_changes.json`` holds what they rely on. Additions pass; to pin them as well, write the file anew
with ``HEXVEIL_WRITE_GOLDEN=1 pytest tests/stream/test_never_changes.py`` and look at the difference: nothing may go.
Plans stay those that an old version stored.
"""

import base64
import json
import os
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream.ingestion.pseudonyms import Pseudonyms
from stream.local.kafka import REPO_ROOT
from stream.messages.message import OUTPUT_TOPICS, digest, schema, window_message
from stream.statistics.plan import PlanError, decode_plan, encode_plan
from stream.storage.keys import FeedKeys
from stream.storage.row_store import ROW
from stream.windows import Window
from tests.support.builders import SLOT, bus_config, pinned_rows, riders_config
from tests.support.releasing import planned

FILE = REPO_ROOT / "tests" / "golden" / "never_changes.json"
MEANING = ("type", "enum", "const", "required", "pattern", "minimum", "maximum")
"""Parts of a JSON Schema that a reader relies on."""


def facts(node: Any, place: str = "") -> dict[str, Any]:
    """Every statement of a schema that a reader may rely on, by its place."""
    statements: dict[str, Any] = {}
    if isinstance(node, dict):
        statements |= {
            f"{place}#{name}": node[name] for name in MEANING if name in node and not isinstance(node[name], dict)
        }
        for name, inner in node.items():
            statements |= facts(inner, f"{place}/{name}")
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            statements |= facts(inner, f"{place}/{number}")
    return statements


def keys() -> dict[str, str]:
    """Name of every Redis key of a feed."""
    feed, named = FeedKeys("feed"), {}
    functions = {"of", "beside", *(field.name for field in fields(FeedKeys))}
    for name in (name for name in dir(FeedKeys) if not name.startswith("_") and name not in functions):
        value = getattr(feed, name)
        named[name] = value if isinstance(value, str) else value("2017-03-21" if name in ("ledger", "terms") else SLOT)
    return named


def plans(tmp_path: Path) -> dict[str, str]:
    """A stored plan of each relation."""
    stored = {}
    for config in (bus_config(tmp_path), riders_config(tmp_path)):
        plan, _ = planned(config, pinned_rows(1, 60))
        stored[config.relation] = base64.b64encode(encode_plan(plan)).decode()
    return stored


def other() -> dict[str, Any]:
    """Names and digests that are computed, each for one input."""
    message = window_message(
        OUTPUT_TOPICS[0], "bus", Window(SLOT, SLOT + 3600), "87489e342ffffff", "87489e342ffffff", {}
    )
    return {
        "ce_id": message.ce_id,
        "timestamp_ms": message.timestamp_ms,
        "digest": digest([b"one", b"two"]),
        "pseudonym": Pseudonyms(bytes(range(32)))["bus-1"],
        "row": [list(field) for field in ROW.descr],
    }


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Any]:
    """Everything that an old version relies on."""
    if os.environ.get("HEXVEIL_WRITE_GOLDEN"):
        schemas = {topic: facts(schema(topic)) for topic in OUTPUT_TOPICS}
        stored = json.loads(FILE.read_text(encoding="utf-8"))["plans"]
        pinned = {"schemas": schemas, "keys": keys(), "plans": plans(tmp_path) | stored, "other": other()}
        FILE.write_text(json.dumps(pinned, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    recorded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return recorded


def lost(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What an old reader relies on and is missing now; only lists of required fields may grow: a choice that is new to
    an old reader makes it refuse a message that it read before.
    """
    gone = []
    for place, statement in old.items():
        now = new.get(place)
        required = place.endswith("#required") and isinstance(now, list)
        grown = required and all(one in now for one in statement)
        if now != statement and not grown:
            gone.append(f"{place}: was {statement!r}, is {now!r}")
    return gone


@pytest.mark.parametrize("topic", OUTPUT_TOPICS)
def test_a_message_keeps_every_field_its_type_and_its_presence(topic, known):
    assert lost(known["schemas"][topic], facts(schema(topic))) == []


def test_every_redis_key_keeps_its_name(known):
    assert lost(known["keys"], keys()) == []


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_a_plan_that_an_older_version_stored_is_read_and_means_the_same(relation, known):
    blob = base64.b64decode(known["plans"][relation])
    assert msgspec.msgpack.decode(encode_plan(decode_plan(blob))) == msgspec.msgpack.decode(blob)


@pytest.mark.parametrize("part", ["", "due", "due/terms", "due/terms/privacy", "due/terms/speed", "values"])
def test_a_plan_that_says_what_this_version_does_not_know_is_refused(part, known):
    plan = msgspec.msgpack.decode(base64.b64decode(known["plans"]["values"]))
    reduce(lambda node, name: node[name], filter(None, part.split("/")), plan)["newer"] = 1
    with pytest.raises(PlanError, match=r"unknown field `newer`.*nothing was drawn.*upgrade this worker"):
        decode_plan(msgspec.msgpack.encode(plan))


def test_identifiers_digests_pseudonyms_and_rows_are_computed_as_before(known):
    assert lost(known["other"], json.loads(json.dumps(other()))) == []


def test_a_planted_change_is_noticed_and_an_addition_is_not():
    old = {"properties": {"users": {"type": "integer"}, "status": {"enum": ["published"]}}, "required": ["users"]}
    more = {**old, "properties": {**old["properties"], "lanes": {"type": "integer"}}, "required": ["users", "status"]}
    assert lost(facts(old), facts(more)) == []
    for changed in (
        {**old, "properties": {"status": {"enum": ["published"]}}},
        {**old, "properties": {**old["properties"], "users": {"type": "number"}}},
        {**old, "required": []},
        {**old, "properties": {**old["properties"], "status": {"enum": ["published", "truncated"]}}},
        {**old, "properties": {**old["properties"], "users": {"type": ["integer", "null"]}}},
    ):
        assert lost(facts(old), facts(changed)) != []
