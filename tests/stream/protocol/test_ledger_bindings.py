"""A ledger is bound to the settings that define users and periods: others would grant a second budget, and are
refused.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.app.doctor import ledger_finding
from stream.cli import app
from stream.config import Config
from stream.ingestion.pseudonyms import key_fingerprint, load_user_key
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.offline import OfflineSummary, replay_offline
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import RowStore
from stream.windows import Window
from tests.support import hourly
from tests.support.builders import SLOT, bus_config, random_rows
from tests.support.stored_rows import store
from tests.support.topics_reader import read_all

FIELDS = {"time": "t", "lat": "y", "lng": "x", "value": "v", "time_format": "epoch-ms"}
HOUR = 3600


def declared(tmp_path: Path, user: str, **overrides: Any) -> Config:
    """config/bus-fleet.toml for a declared feed whose field ``user`` names a user."""
    fields = {f"feed.fields.{name}": path for name, path in (FIELDS | {"user": user}).items()}
    return bus_config(tmp_path, **({"feed.format": "declared"} | fields | overrides))


def replay(config: Config, tmp_path: Path, hour: int) -> tuple[OfflineSummary, str]:
    """Release one hour of three buses, each with a plate and a number of its own, with a ledger that stays."""
    file = tmp_path / "day.ndjson"
    events = [
        {"plate": f"P{bus}", "number": f"N{bus}", "t": (SLOT + h * HOUR + bus) * 1000, "y": 30.2, "x": -97.7, "v": 20.0}
        for h in range(2)
        for bus in range(3)
    ]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    out, start = io.StringIO(), SLOT + hour * HOUR
    span = Window(start, start + HOUR)
    return replay_offline(config, file, "declared", out, span=span, state=tmp_path / "ledger"), out.getvalue()


def test_another_field_for_the_user_is_refused_and_with_the_old_one_the_ledger_goes_on(tmp_path: Path) -> None:
    first, _ = replay(declared(tmp_path, "plate"), tmp_path, 0)
    assert first.charged["2017-03-21"][0] == 3
    with pytest.raises(LedgerError, match=r"field 'plate' of .*field 'number' of .*\[feed.fields\].*new name"):
        replay(declared(tmp_path, "number"), tmp_path, 1)
    second, out = replay(declared(tmp_path, "plate"), tmp_path, 1)
    assert second.charged["2017-03-21"][0] == 3
    assert second.charged["2017-03-21"][1] > first.charged["2017-03-21"][1]
    assert out.count(WINDOW) > 0


def test_were_the_field_not_bound_three_buses_would_have_six_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug."""

    async def anything(self: Ledger, identity: str) -> None:
        return None

    monkeypatch.setattr(Ledger, "claim_identity", anything)
    replay(declared(tmp_path, "plate"), tmp_path, 0)
    second, _ = replay(declared(tmp_path, "number"), tmp_path, 1)
    assert second.charged["2017-03-21"][0] == 6


def test_the_command_says_what_is_bound_what_was_given_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = {
        "canonical": {"user": "a", "time": SLOT * 1000, "lat": 30.2, "lng": -97.7, "speed": 12.0},
        "capmetro": {
            "vehicle_id": "a",
            "timestamp": "2017-03-21T13:00:01Z",
            "latitude": 30.2,
            "longitude": -97.7,
            "speed": 4.0,
        },
    }
    runs = []
    for name, event in events.items():
        (tmp_path / f"{name}.ndjson").write_text(json.dumps(event) + "\n")
        command = ["replay", f"{name}.ndjson", "--format", name, "--offline", "--state", "ledger"]
        runs.append(CliRunner().invoke(app, [*command, "--config", str(hourly.BUS)]))
    assert [run.exit_code for run in runs] == [0, 1]
    assert runs[1].stdout == ""
    assert all(part in runs[1].stderr for part in ("field 'user'", "field 'vehicle_id'", "new name"))


@pytest.mark.parametrize(
    "change",
    [{"feed.format": "capmetro"}, {"feed.topic": "other.positions"}, {"feed.format": "itms"}],
    ids=["format", "topic", "format with another field"],
)
async def test_a_worker_that_would_know_users_by_another_name_releases_nothing(
    change: dict[str, str], kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    before, after = bus_config(tmp_path, **settings), bus_config(tmp_path, **(settings | change))
    await create_topics(before)
    await store(redis, before, random_rows(4, 60))
    await verify_ledger(before, redis)
    with pytest.raises(LedgerError, match="second budget in the same period"):
        await verify_ledger(after, redis)
    (report,) = await close_windows(after, [SLOT])
    assert report.failure == "ledger"
    assert await Ledger(redis, topic_name).periods() == []
    assert [record for record in await read_all(kafka, topic_name) if record.topic == WINDOW] == []
    (report,) = await close_windows(before, [SLOT])
    assert report.failure is None


async def test_formats_that_name_users_by_the_same_field_share_a_ledger(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    await create_topics(bus_config(tmp_path, **settings))
    formats = [bus_config(tmp_path, **(settings | {"feed.format": name})) for name in ("capmetro", "capmetro-2015")] + [
        declared(tmp_path, "vehicle_id", **settings)
    ]
    assert len({await verify_ledger(config, redis) for config in formats}) == 1


async def test_doctor_finds_another_or_a_missing_user_key_before_a_worker_starts(
    kafka: str, redis: Redis, redis_url: str, tmp_path: Path, topic_name: str
) -> None:
    settings = {"feed.name": topic_name, "kafka.bootstrap": kafka, "redis.url": redis_url}
    config = bus_config(tmp_path, **settings)
    await create_topics(config)
    key = load_user_key(config.privacy.user_key_file)
    await RowStore(redis, topic_name).claim_key(key_fingerprint(key))
    assert (await ledger_finding(config, redis)).ok
    config.privacy.user_key_file.unlink()
    missing = await ledger_finding(config, redis)
    assert not missing.ok
    assert "restore the file" in missing.found
    load_user_key(config.privacy.user_key_file)
    another = await ledger_finding(config, redis)
    assert not another.ok
    assert "user_key_file" in another.found
