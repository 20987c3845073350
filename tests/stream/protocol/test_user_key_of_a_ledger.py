"""A shared ledger and the user key: only a worker that starts makes one, and only where no other is known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from stream.cli import app
from stream.local import REPO_ROOT
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.storage.ledger import Ledger, LedgerError
from tests.support.city import City


async def test_adopting_periods_without_the_user_key_is_refused_and_makes_none(city: City, tmp_path: Path) -> None:
    """A key that never was cannot be the one that the charges of the ledger were made under."""
    text, file, key = (
        (REPO_ROOT / "config" / "bus-fleet.toml").read_text(encoding="utf-8"),
        tmp_path / "bus.toml",
        tmp_path / "nowhere" / "user.key",
    )
    file.write_text(text.replace("[hexagons]", '[ledger]\nname = "city"\n\n[hexagons]'), encoding="utf-8")
    environment = {
        "HEXVEIL_REDIS__URL": city.server.url,
        "HEXVEIL_KAFKA__BOOTSTRAP": city.bus.kafka.bootstrap,
        "HEXVEIL_PRIVACY__USER_KEY_FILE": str(key),
    }
    command = ["ledger", "adopt", "--no-other-ledger", "--config", str(file)]
    adopted = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)
    assert adopted.exit_code == 1, adopted.output
    assert str(key) in adopted.output
    assert not key.parent.exists()
    async with Redis.from_url(city.server.url) as client:
        assert await client.keys() == []


async def test_a_check_that_is_no_start_of_a_worker_neither_makes_a_key_nor_binds_the_ledger(city: City) -> None:
    key = city.bus.privacy.user_key_file
    key.unlink(missing_ok=True)
    async with Redis.from_url(city.server.url) as client:
        with pytest.raises(LedgerError, match="the first worker creates it"):
            await LedgerCheck(city.bus, client, Ledger.of(client, city.bus), Known()).verify()
        assert await client.keys() == []
    assert not key.exists()
    await city.verify(city.bus)
    assert key.exists()


async def test_a_worker_without_the_key_of_a_ledger_that_has_one_is_refused_and_makes_none(city: City) -> None:
    await city.verify(city.bus)
    key = city.tram.privacy.user_key_file
    key.unlink()
    with pytest.raises(LedgerError, match="another user key"):
        await city.verify(city.tram)
    assert not key.exists()
