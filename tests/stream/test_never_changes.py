"""What docs/versions.md promises never to change: old readers, old ledgers and old plans still work.

``tests/golden/never_changes.json`` holds what they rely on. Additions pass; to pin them as well, write the file anew
with ``HEXVEIL_WRITE_GOLDEN=1 pytest tests/stream/test_never_changes.py`` and look at the difference: nothing may go.
Plans stay those that an old version stored.

The same rows, ledger and tape of entropy give the same releases, which refactoring must not change.

Golden files hold every message of three windows under several configurations. Estimates under ``post_processed`` are
floats of a model and may differ in their last digits between builds of numpy and scipy; of Euler's program scipy's
solver chooses one of several optima, by its version. Everything else is exact. ``HEXVEIL_WRITE_GOLDEN=1 pytest
tests/stream/test_never_changes.py`` writes the files anew, where releases change on purpose.
"""

import asyncio
import base64
import gzip
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from dpcore.noise import Noise
from stream.config import Config
from stream.ingestion.pseudonyms import Pseudonyms
from stream.local import REPO_ROOT
from stream.messages.message import OUTPUT_TOPICS, digest, schema, window_message
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.protocol.parts import statistics_of
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import decode_plan, encode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW
from stream.windows import Window
from tests.support.builders import SLOT, bus_config, located, pinned_rows, riders_config, with_histograms, zcdp_config
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
    assert decode_plan(encode_plan(decode_plan(blob))) == decode_plan(blob)


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


GOLDEN = Path(__file__).parents[1] / "golden"
GENERATION = "11111111-1111-4111-8111-111111111111"
HOURS = 3
LOCKED = f"scipy=={version('scipy')} " in (REPO_ROOT / "requirements.lock").read_text()
"""Whether the solver is the one that the golden files were written with."""

CASES: dict[str, Callable[[Path], Config]] = {
    "values": bus_config,
    "values-percentiles": lambda folder: bus_config(
        folder, **{"speed.statistics": ["mean", "variance", "p15", "p50", "p85"]}
    ),
    "values-levy": lambda folder: bus_config(folder, **{"speed.mean_mechanism": "levy", "speed.min_users": 2}),
    "values-uniform": lambda folder: bus_config(
        folder,
        **{"speed.allocation": "uniform", "speed.suppression": "none", "speed.clipping": "none", "speed.sum_cap": 0},
    ),
    "values-merged": lambda folder: bus_config(folder, **{"hexagons.merge_until": 8.0}),
    "values-histograms": lambda folder: with_histograms("values", folder),
    "participation": lambda folder: riders_config(folder, **small(7)),
    "participation-sample": lambda folder: riders_config(
        folder,
        **small(7),
        **{
            "participation.weight": "sample",
            "speed.clipping": "none",
            "speed.statistics": ["mean", "variance", "p15", "p50", "p85"],
        },
    ),
    "participation-zcdp": lambda folder: zcdp_config(folder, 0.5, 12.0, **small(7)),
    "participation-histograms": lambda folder: with_histograms("participation", folder, ["auto", "htf", "euler"]),
}


def small(resolution: int) -> dict[str, Any]:
    """A public box of some ten cells, so that golden files stay small."""
    box = {"south": 30.17, "west": -97.75, "north": 30.48, "east": -97.66}
    return {"hexagons.resolution": resolution, "feed.domain": box}


def tape(seed: str) -> Callable[[int], bytes]:
    """Entropy that is the same in every run: SHAKE-256 of the seed and a counter."""
    counter = itertools.count()
    return lambda n: hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(n)


def rows_of(case: str) -> np.ndarray:
    hours = [pinned_rows(seed, 300, 15, slot=SLOT + 3600 * seed) for seed in range(HOURS)]
    return np.concatenate([located(rows, seed) if "histograms" in case else rows for seed, rows in enumerate(hours)])


async def released(config: Config, redis: Redis, case: str) -> tuple[str, dict[str, Any]]:
    """Every message as a line, and what the ledger charged."""
    ledger = Ledger(redis, config.feed.name)
    await ledger.start_generation(birth=0)
    await redis.set(FeedKeys(config.feed.name).generation, GENERATION)
    out = io.StringIO()
    by_slot = split_by_slot(rows_of(case), config)
    closing = ReleaseProtocol(
        statistics_of(config), redis, MemoryRows(by_slot), ledger, LinePublisher(out), Noise(tape(case))
    )
    for slot in sorted(by_slot):
        await closing.close(slot)
    period = config.slotting.period_of(SLOT).key
    return out.getvalue(), {"period": period, "charged": await ledger.total(period)}


def exact(line: str) -> tuple[Any, list[float]]:
    """A message without what depends on the last digits of floats, and those floats."""
    message = json.loads(line)
    value, floats = message["value"], []
    for name, estimate in sorted(value.pop("post_processed", {}).items()):
        floats += [estimate["value"], *estimate["interval"]]
        value[f"method of {name}"] = estimate["method"]
    if message["topic"] == "hexveil.window.v1":
        value.pop("digest")
        value.pop("memory", None)
        value.pop("previous", None)  # of a marker with such floats
    if value.get("mechanism") == "euler" and not LOCKED:
        value.pop("structure")
    return message, floats


@pytest.mark.parametrize("case", CASES)
async def test_rows_ledger_and_tape_give_the_releases_of_the_golden_file(case, tmp_path, redis):
    lines, ledger = await asyncio.wait_for(released(CASES[case](tmp_path), redis, case), 120)
    file = GOLDEN / f"{case}.ndjson.gz"
    if os.environ.get("HEXVEIL_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        file.write_bytes(gzip.compress((lines + json.dumps(ledger) + "\n").encode(), mtime=0))
    *golden, charged = gzip.decompress(file.read_bytes()).decode().splitlines()
    if os.environ.get("HEXVEIL_GOLDEN_BYTES"):
        assert lines.splitlines() == golden
    assert ledger == json.loads(charged) | {"charged": tuple(json.loads(charged)["charged"])}
    assert len(lines.splitlines()) == len(golden)
    for ours, theirs in zip(lines.splitlines(), golden, strict=True):
        (mine, floats), (kept, wanted) = exact(ours), exact(theirs)
        assert mine == kept
        assert floats == pytest.approx(wanted, abs=0.01, rel=1e-4)
