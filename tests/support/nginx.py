"""A real nginx on loopback with a ``location`` that a page of the documents gives."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession

from stream.local import LOOPBACK, REPO_ROOT, free_port

_NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
_SERVER = """
daemon off; {user} pid nginx.pid; error_log stderr warn; worker_processes 1;
events {{ }}
http {{ access_log off; {temporary}
  server {{ listen {address}; {location} }} }}
"""
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

needs_nginx = pytest.mark.skipif(_NGINX is None, reason="no nginx here (Debian: apt-get install nginx-light)")


@contextlib.asynccontextmanager
async def nginx(folder: Path, page: str, **replaced: str) -> AsyncIterator[str]:
    """Its address, once it answers. ``page``: of docs/, with the location; ``replaced``: what its words become here."""
    assert _NGINX is not None
    given = re.search(r"^location .*?^\}$", (REPO_ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert given is not None
    location, address = given[0], f"{LOOPBACK}:{free_port()}"
    for word, here in replaced.items():
        assert word in location
        location = location.replace(word, here)
    temporary = " ".join(f"{kind}_temp_path {folder / kind};" for kind in _TEMPORARY)
    file = folder / "nginx.conf"
    user = (
        "user root;" if os.geteuid() == 0 else ""
    )  # or its workers could not enter the folder of a test that runs as root
    file.write_text(_SERVER.format(user=user, temporary=temporary, address=address, location=location))
    process = await asyncio.create_subprocess_exec(_NGINX, "-p", folder, "-c", file)
    try:
        async with ClientSession() as session:
            await _until_it_answers(session, f"http://{address}/")
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def _until_it_answers(session: ClientSession, address: str) -> None:
    for _ in range(600):
        with contextlib.suppress(ClientConnectionError):
            async with session.get(address):
                return
        await asyncio.sleep(0.1)
    raise AssertionError("nginx never answered")
