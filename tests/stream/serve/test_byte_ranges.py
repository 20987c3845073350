"""A street map is read by ranges of a bounded length, by clients that do not have to be trusted to read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp.test_utils import TestClient, TestServer

from stream.serve import sending
from stream.serve.api import make_app
from stream.serve.static_files import LARGEST_RANGE, PMTILES, check_basemap
from tests.support.builders import bus_config


@asynccontextmanager
async def with_basemap(folder: Path, content: bytes) -> AsyncIterator[TestClient[Any, Any]]:
    """A server over a street map of these bytes, ``city.pmtiles`` in ``folder``."""
    archive = folder / "city.pmtiles"
    archive.write_bytes(content)
    async with TestClient(TestServer(make_app(bus_config(folder), check_basemap(archive)))) as client:
        yield client


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-", 0, 2055),
        ("bytes=8-", 8, 2055),
        ("bytes=-10", 2046, 2055),
        ("bytes=2000-99999999999999999999", 2000, 2055),
    ],
)
async def test_an_open_range_of_a_basemap_ends_with_it(tmp_path: Path, asked: str, first: int, last: int) -> None:
    content = b"PMTiles\x03" + bytes(range(256)) * 8
    async with with_basemap(tmp_path, content) as client:
        answer = await client.get("/dashboard/basemap.pmtiles", headers={"Range": asked})
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/2056"
        assert await answer.read() == content[first : last + 1]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("bytes=99999999-", 416),
        ("bytes=5-2", 416),
        ("bytes=-0", 416),
        ("Bytes=-00", 416),
        ("bytes=0-1,4-5", 416),
        ("bytes=a-b", 416),
        (f"bytes=0-{LARGEST_RANGE}", 413),
        (None, 413),
    ],
)
async def test_ranges_that_are_none_and_too_large_ones_are_refused_with_a_remedy(
    tmp_path: Path, asked: str | None, status: int
) -> None:
    async with with_basemap(tmp_path, PMTILES + bytes(LARGEST_RANGE)) as client:
        answer = await client.get("/dashboard/basemap.pmtiles", headers={"Range": asked} if asked else {})
        assert (answer.status, answer.content_type) == (status, "application/problem+json")
        assert (await answer.json())["detail"].startswith("ask for")


async def test_a_compressed_file_beside_a_basemap_is_not_taken_for_it(tmp_path: Path) -> None:
    async with with_basemap(tmp_path, PMTILES + b"\x03") as client:
        (tmp_path / "city.pmtiles.gz").write_bytes(b"\x1f\x8b of something else")
        answer = await client.get("/dashboard/basemap.pmtiles", headers={"Accept-Encoding": "gzip"})
        assert await answer.read() == PMTILES + b"\x03"


async def test_a_client_that_reads_nothing_of_a_basemap_holds_no_file_and_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "STALL_SECONDS", 0.5)
    async with with_basemap(tmp_path, PMTILES + bytes(LARGEST_RANGE - len(PMTILES))) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1024)
        writer.write(b"GET /dashboard/basemap.pmtiles HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readline()
        await asyncio.sleep(0.2)
        assert not [file.path for file in psutil.Process().open_files() if file.path.endswith("city.pmtiles")]
        async with asyncio.timeout(30):
            await asyncio.sleep(1)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(LARGEST_RANGE)
        writer.close()


async def test_a_basemap_that_was_removed_is_not_found(tmp_path: Path) -> None:
    async with with_basemap(tmp_path, PMTILES) as client:
        (tmp_path / "city.pmtiles").unlink()
        assert (await client.get("/dashboard/basemap.pmtiles")).status == 404
