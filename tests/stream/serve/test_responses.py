"""Bodies are made and compressed one after the other, and kept within bounds."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from aiohttp.test_utils import make_mocked_request

from stream.serve.responses import JSON, Answers

LARGE = 1 << 17
"""Bytes of a body that is not compressed in the event loop."""


async def test_each_body_is_compressed_before_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    compress = gzip.compress

    def noted(*given: bytes, **how: int) -> bytes:
        steps.append("compressed")
        return compress(*given, **how)

    def make(content: bytes) -> bytes:
        steps.append("made")
        return content

    monkeypatch.setattr(gzip, "compress", noted)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    answers, request = Answers(), make_mocked_request("GET", "/")
    bodies = [os.urandom(LARGE) for _ in range(8)]
    await asyncio.gather(
        *(
            answers.answer(request, str(number), partial(make, body), JSON, "revalidate")
            for number, body in enumerate(bodies)
        )
    )
    assert steps == ["made", "compressed"] * len(bodies)


async def test_a_small_body_that_is_there_already_waits_for_no_thread() -> None:
    end, executor = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)
    busy = executor.submit(end.wait)
    try:
        answers, request = Answers(), make_mocked_request("GET", "/", headers={"Accept-Encoding": "gzip"})
        async with asyncio.timeout(60):
            first = await answers.ready(request, b"x" * 2000, JSON, "revalidate")
            again = await answers.ready(request, b"x" * 2000, JSON, "revalidate")
        assert first.headers["Content-Encoding"] == "gzip"
        assert first.headers["ETag"] == again.headers["ETag"]
        assert not busy.done()
    finally:
        end.set()


async def test_very_many_small_bodies_take_no_more_than_a_few_large_ones() -> None:
    answers, request = Answers(max_bytes=1 << 20), make_mocked_request("GET", "/")
    keys = [str(number) for number in range(5_000)]
    for key in keys:
        await answers.ready(request, key.encode(), JSON, key)
    assert sum(key in answers for key in keys) <= 1 << 10
    assert keys[-1] in answers
