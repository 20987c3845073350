"""The AsyncAPI document is valid, and accepts the same messages as the schemas."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.local import REPO_ROOT
from stream.messages.message import OUTPUT_TOPICS, schema
from stream.messages.topics import EXAMPLES, document, topic_plans
from tests.support.builders import bus_config
from tests.support.mutations import mutations

PACKAGES = REPO_ROOT / "examples"
NEWER_THAN_DRAFT_07 = {
    "$anchor",
    "$defs",
    "$dynamicRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
}

needs_parser = pytest.mark.skipif(
    shutil.which("node") is None or not (PACKAGES / "node_modules" / "@asyncapi" / "parser").is_dir(),
    reason="no @asyncapi/parser in examples; run: npm ci",
)


def payloads() -> dict[str, Any]:
    """Payload schema of each topic as the AsyncAPI document has it."""
    channels = document()["channels"].values()
    return {channel["address"]: next(iter(channel["messages"].values()))["payload"] for channel in channels}


def keywords(node: Any) -> set[str]:
    """Names of all members, at any depth."""
    if isinstance(node, list):
        return set().union(*map(keywords, node))
    return set(node).union(*map(keywords, node.values())) if isinstance(node, dict) else set()


def diagnostics(made: dict[str, Any], tmp_path: Path) -> list[Any]:
    """Everything that AsyncAPI's own parser reports about a document, whatever its severity."""
    file = tmp_path / "asyncapi.json"
    file.write_text(json.dumps(made))
    script = """
        import { readFileSync } from 'node:fs'
        import { Parser } from '@asyncapi/parser'
        const { diagnostics } = await new Parser().parse(readFileSync(process.argv[1], 'utf8'))
        console.log(JSON.stringify(diagnostics))
    """
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script, str(file)],
        cwd=PACKAGES,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    reported: list[Any] = json.loads(done.stdout)
    return reported


@needs_parser
def test_the_asyncapi_document_is_valid_and_its_parser_has_nothing_to_say(tmp_path: Path) -> None:
    assert document()["asyncapi"].startswith("3.1")
    assert diagnostics(document(), tmp_path) == []


@needs_parser
@pytest.mark.nightly
def test_the_parser_finds_what_is_wrong(tmp_path: Path) -> None:
    broken = document()
    broken["channels"]["window"]["messages"]["window"]["payload"]["properties"]["messages"]["type"] = "number of them"
    assert diagnostics(broken, tmp_path)
    unknown = document()
    unknown["operations"]["publishWindow"]["channel"]["$ref"] = "#/channels/none"
    assert diagnostics(unknown, tmp_path)


@pytest.mark.parametrize("topic", OUTPUT_TOPICS)
def test_schema_and_asyncapi_payload_take_and_refuse_the_same_values(topic: str) -> None:
    payload = payloads()[topic]
    assert not keywords(payload) & NEWER_THAN_DRAFT_07
    assert keywords(schema(topic)) & NEWER_THAN_DRAFT_07 <= {"dependentRequired"}
    jsonschema.Draft7Validator.check_schema(payload)
    original, translated = jsonschema.Draft202012Validator(schema(topic)), jsonschema.Draft7Validator(payload)
    assert original.is_valid(EXAMPLES[topic])
    for body in [*mutations(EXAMPLES[topic]), EXAMPLES[topic] | {"accounting": "zcdp"}, EXAMPLES[topic] | {"rho": 0.1}]:
        assert original.is_valid(body) == translated.is_valid(body), body


def test_the_document_names_the_topics_as_they_are_created(tmp_path: Path) -> None:
    plans = {plan.name: plan for plan in topic_plans(bus_config(tmp_path))}
    channels = {channel["address"]: channel["bindings"]["kafka"] for channel in document()["channels"].values()}
    assert set(channels) == set(OUTPUT_TOPICS)
    for name, binding in channels.items():
        assert binding["partitions"] == plans[name].partitions
        assert binding["topicConfiguration"]["retention.ms"] == plans[name].retention_ms


def test_schemas_are_listed_and_exported(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["schema", "list", "--json"])
    assert list(json.loads(listed.stdout)) == list(OUTPUT_TOPICS)
    result = CliRunner().invoke(app, ["schema", "list"])
    assert all(topic in result.stdout for topic in OUTPUT_TOPICS)
    folder = tmp_path / "new" / "schemas"
    for _ in range(2):
        done = CliRunner().invoke(app, ["schema", "export", str(folder), "--json"])
        assert done.exit_code == 0
    assert sorted(map(str, folder.iterdir())) == sorted(json.loads(done.stdout))
    for topic in OUTPUT_TOPICS:
        assert json.loads((folder / f"{topic}.json").read_text()) == schema(topic)
    assert json.loads((folder / "asyncapi.json").read_text()) == document()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["schema", "export", str(tmp_path / "file")])
    assert done.exit_code == 2
    assert f"{tmp_path / 'file'} cannot be written to" in done.stderr
