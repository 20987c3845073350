"""Real proxies on loopback: any program, and nginx with a ``location`` that a page of the documents gives."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stream.local.kafka import REPO_ROOT
from stream.local.server import LOOPBACK, free_port


def program_of(name: str) -> str | None:
    """Its path, also where only root would find it; None without it."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


_NGINX = program_of("nginx")
_SERVER = """
daemon off; {user} pid nginx.pid; error_log stderr warn; worker_processes 1;
events {{ }}
http {{ access_log off; {temporary}
  server {{ listen {address}; {location} }} }}
"""


def temporary_paths(folder: Path) -> str:
    """Where an nginx that is not installed keeps what it buffers, as its configuration says it."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)


@contextlib.asynccontextmanager
async def listening(port: int, *command: str | Path) -> AsyncIterator[None]:
    """While a program runs, once it listens on the port."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                (await asyncio.open_connection(LOOPBACK, port))[1].close()
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"nobody listens on port {port}")
        yield
    finally:
        process.terminate()
        await process.wait()


needs_nginx = pytest.mark.skipif(_NGINX is None, reason="no nginx here (Debian: apt-get install nginx-light)")


@contextlib.asynccontextmanager
async def nginx(folder: Path, page: str, **replaced: str) -> AsyncIterator[str]:
    """Its address, once it answers. ``page``: of docs/, with the location; ``replaced``: what its words become here."""
    assert _NGINX is not None
    given = re.search(r"^location .*?^\}$", (REPO_ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert given is not None
    location, port = given[0], free_port()
    for word, here in replaced.items():
        assert word in location
        location = location.replace(word, here)
    # Else the workers of a test that runs as root could not enter its folder.
    user = "user root;" if os.geteuid() == 0 else ""
    file, words = folder / "nginx.conf", {"user": user, "temporary": temporary_paths(folder), "location": location}
    file.write_text(_SERVER.format(address=f"{LOOPBACK}:{port}", **words))
    async with listening(port, _NGINX, "-p", folder, "-c", file):
        yield f"http://{LOOPBACK}:{port}"
