"""Scripts of ``stream/storage/lua`` that are called for every batch: by their digest, so that their text is sent
once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

Argument = str | int | bytes


class Script:
    """The script whose text is that of the files ``names``, one after the other."""

    def __init__(self, redis: Redis, *names: str) -> None:
        self._redis: Any = redis
        folder = resources.files("stream.storage").joinpath("lua")
        self._text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
        self._sha = redis.register_script(self._text).sha

    async def run(self, keys: Sequence[str], args: Sequence[Argument]) -> list[Any]:
        """Its answer, a list."""
        try:
            answer: list[Any] = await self._redis.evalsha(self._sha, len(keys), *keys, *args)
        except NoScriptError:
            # Loading it would ask every shard, of which one may be away; this one learns it by running it once.
            answer = await self._redis.eval(self._text, len(keys), *keys, *args)
        return answer
