"""The list of feeds says where the speeds of the configured feed come from, and nothing of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.config import Config
from stream.messages.lines import line_of
from tests.stream.serve.serving import released, serving_file
from tests.support.builders import bus_config, riders_config


async def listed(config: Config, releases: Path) -> tuple[list[dict[str, str | None]], str | None]:
    """The feeds of the API, and what the dashboard hears about the configured one."""
    async with serving_file(config, releases) as client:
        feeds = (await (await client.get("/api/v1/feeds")).json())["feeds"]
        return feeds, (await (await client.get("/dashboard/settings")).json())["derived_speeds"]


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    file = tmp_path / "releases.ndjson"
    file.write_text("".join(line_of(message) for message in released(tmp_path)))
    return file


@pytest.mark.parametrize("speeds", ["missing", "derived"])
async def test_under_values_derived_speeds_are_said_to_be_protected_by_participation_alone(
    speeds: str, tmp_path: Path, releases: Path
) -> None:
    (feed,), shown = await listed(bus_config(tmp_path, **{"feed.speeds": speeds}), releases)
    assert (feed["feed"], feed["derived_speeds"], shown) == ("bus", speeds, speeds)
    assert feed["note"] is not None
    assert "a derived speed is public as well and is not protected" in feed["note"]
    assert feed["note"].endswith("To protect derived speeds, use relation 'participation'.")


async def test_under_participation_derived_speeds_need_no_note(tmp_path: Path, releases: Path) -> None:
    config = riders_config(tmp_path, **{"feed.speeds": "missing"})
    feeds, shown = await listed(config, releases)
    own = {"feed": config.feed.name, "derived_speeds": "missing", "note": None}
    assert own in feeds
    assert shown == "missing"


async def test_reported_speeds_and_feeds_that_are_not_configured_have_neither_source_nor_note(
    tmp_path: Path, releases: Path
) -> None:
    nothing = {"derived_speeds": None, "note": None}
    assert await listed(bus_config(tmp_path), releases) == ([{"feed": "bus"} | nothing], None)
    feeds, _ = await listed(bus_config(tmp_path, **{"feed.name": "tram", "feed.speeds": "derived"}), releases)
    assert [(feed["feed"], feed["derived_speeds"]) for feed in feeds] == [("bus", None), ("tram", "derived")]
    assert feeds[0] == {"feed": "bus"} | nothing
