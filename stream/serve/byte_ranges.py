"""Parts of a file that is too large to be sent, or kept, as a whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from stream.serve.responses import Problem

LARGEST_RANGE = 4 << 20
"""Bytes of a file that one request may read: more than any tile of a map or directory of an archive has."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file, the status of the answer that has them, and what its headers say of them."""

    body: bytes
    status: int
    headers: dict[str, str]


def part_of(path: Path, request: web.Request) -> Part:
    """The bytes that the request asks for; all without a range. Raises :class:`Problem` 413 and 416."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        size, tag = about.st_size, f'"{about.st_mtime_ns:x}-{about.st_size:x}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        is_part = "Range" in request.headers and request.headers.get("If-Range", tag) == tag
        start, stop = _bounds(request, size) if is_part else (0, size)
        if stop - start > LARGEST_RANGE:
            title = f"{stop - start} bytes are asked for at once, above {LARGEST_RANGE}"
            raise Problem(413, title, "ask for them by shorter ranges")
        file.seek(start)
        body = file.read(stop - start)
    if not is_part:
        return Part(body, 200, headers)
    return Part(body, 206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"})


def _bounds(request: web.Request, size: int) -> tuple[int, int]:
    """The first byte of the request's range, and that behind its last."""
    try:
        asked = request.http_range
        start, stop, _ = asked.indices(size)
    except ValueError:
        start = stop = 0
    else:
        if not asked.start and request.headers["Range"].lower().startswith("bytes=-"):
            start = stop  # the last 0 bytes, which aiohttp reads as all (RFC 9110, section 14.1.2)
    if start >= stop:
        title = f"the file has no bytes {request.headers['Range'][:80]!r}"
        raise Problem(416, title, f"ask for one range of its {size} bytes", {"Content-Range": f"bytes */{size}"})
    return start, stop
