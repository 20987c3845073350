"""What docs/versions.md promises never to change: old readers, old ledgers and old plans still work.

``tests/golden/never_changes.json`` holds what they rely on. Additions pass; to pin them as well, write the file anew
with ``HEXVEIL_WRITE_GOLDEN=1 pytest tests/stream/test_never_changes.py`` and look at the difference: nothing may go.
Plans stay those that an old version stored.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from stream.ingestion.pseudonyms import Pseudonyms
from stream.local import REPO_ROOT
from stream.messages.message import OUTPUT_TOPICS, digest, schema, window_message
from stream.statistics.pipeline import contributions_of, plan_window
from stream.statistics.plan import Plan, PlanError, decode_plan, empty_plan, encode_plan, pack_ids, pack_integers
from stream.storage.keys import FeedKeys
from stream.storage.row_store import ROW
from stream.storage.stored_sums import ENTRY, LATEST
from stream.windows import Window
from tests.support.builders import SLOT, bus_config, pinned_rows, riders_config

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
        contributions = contributions_of(pinned_rows(1, 60), config)
        window, period = config.slotting.window(SLOT), config.slotting.period_of(SLOT)
        left = np.full(len(contributions.counts.users), config.privacy.ledger_budget)
        plan = plan_window(contributions.counts, left, config, window, period, "11111111-1111-4111-8111-111111111111")
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
        "sums": {"entry": ENTRY.descr, "user": LATEST.descr},
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
    """What an old reader relies on and is missing now; only lists of required fields may grow: a choice that is new to an old
    reader makes it refuse a message that it read before.
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
def test_a_message_keeps_every_field_its_type_and_its_presence(topic: str, known: dict[str, Any]) -> None:
    assert lost(known["schemas"][topic], facts(schema(topic))) == []


def test_every_redis_key_keeps_its_name(known: dict[str, Any]) -> None:
    assert lost(known["keys"], keys()) == []


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_a_plan_that_an_older_version_stored_is_read_and_means_the_same(relation: str, known: dict[str, Any]) -> None:
    blob = base64.b64decode(known["plans"][relation])
    assert encode_plan(decode_plan(blob)) == blob


DEPARTURES: list[dict[str, Any]] = [
    {"mean_mechanism": "levy", "mean_capacity": 3},
    {"mean_mechanism": "fixed-quantile", "mean_quantile_percent": 30},
    {"statistics": ["p50"], "cdf_factors": [2] * 5},
    {"statistics": ["p50"], "cdf_sharing": "equal"},
]
"""Tables of [speed] with a key that versions before it would pass over."""


@pytest.mark.parametrize("speed", DEPARTURES, ids=str)
def test_versions_that_do_not_know_a_key_cannot_read_a_plan_that_sets_it(tmp_path: Path, speed: dict[str, Any]) -> None:
    """Otherwise they would draw by their own default, with noise that was not charged. They read plans as maps."""
    config = bus_config(tmp_path, **{f"speed.{key}": value for key, value in speed.items()})
    by_default = empty_plan(bus_config(tmp_path), config.slotting.window(SLOT), config.slotting.period_of(SLOT), "")
    plan = empty_plan(config, config.slotting.window(SLOT), config.slotting.period_of(SLOT), "")
    assert decode_plan(encode_plan(plan)) == plan != by_default
    assert decode_plan(encode_plan(by_default)) == by_default
    assert msgspec.msgpack.decode(encode_plan(by_default), type=Plan) == by_default
    with pytest.raises(msgspec.ValidationError, match="Expected `object`, got `array`"):
        msgspec.msgpack.decode(encode_plan(plan), type=Plan)
    with pytest.raises(PlanError, match="upgrade this worker"):
        decode_plan(msgspec.msgpack.encode((5, plan)))


def test_versions_with_one_cap_for_all_cells_cannot_read_a_plan_with_a_cap_for_each(tmp_path: Path) -> None:
    """Otherwise they would cap all cells at the largest: their noise was charged for less."""
    config = bus_config(tmp_path)
    plain = empty_plan(config, config.slotting.window(SLOT), config.slotting.period_of(SLOT), "")
    for departing in ({}, {"mean_capacity": 3}):
        plan = msgspec.structs.replace(plain, sum_cap=9, sum_caps_bytes=pack_integers(np.array([7, 9])), **departing)
        assert decode_plan(encode_plan(plan)) == plan
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(encode_plan(plan), type=Plan | tuple[Literal[1], Plan])


def test_versions_without_the_mean_of_the_area_cannot_read_a_plan_with_it(tmp_path: Path) -> None:
    """Otherwise they would look for scales of fewer parts, or take the area's for a level's."""
    plain = empty_plan(
        riders_config(tmp_path), Window(SLOT, SLOT + 3600), riders_config(tmp_path).slotting.period_of(SLOT), ""
    )
    plan = msgspec.structs.replace(plain, area=True)
    assert decode_plan(encode_plan(plan)) == plan
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encode_plan(plan), type=Plan | tuple[Literal[1, 2, 3], Plan])


def test_a_plan_of_a_version_with_one_cap_keeps_it_for_every_cell(tmp_path: Path) -> None:
    config = bus_config(tmp_path)
    plan = empty_plan(config, config.slotting.window(SLOT), config.slotting.period_of(SLOT), "")
    old = msgspec.structs.replace(plan, sum_cap=9, cells_bytes=pack_ids(np.arange(3, dtype=np.uint64)))
    assert decode_plan(msgspec.msgpack.encode(old)).caps.tolist() == [9, 9, 9]
    assert plan.caps is None


def test_identifiers_digests_pseudonyms_and_rows_are_computed_as_before(known: dict[str, Any]) -> None:
    assert lost(known["other"], json.loads(json.dumps(other()))) == []


def test_a_planted_change_is_noticed_and_an_addition_is_not() -> None:
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
