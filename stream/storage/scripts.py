"""Scripts of ``stream/storage/lua``: whatever reads and writes in one step. They are called by their digest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

Argument = str | int | bytes


@cache
def text_of(name: str) -> str:
    """The text of the script."""
    return resources.files("stream.storage").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


async def run(redis: Any, name: str, keys: Sequence[str], *args: Argument) -> Any:
    """The answer of the script ``name``."""
    text = text_of(name)
    try:
        return await redis.evalsha(redis.register_script(text).sha, len(keys), *keys, *args)
    except NoScriptError:
        # Loading it would ask every shard, of which one may be away; this one learns it by running it once.
        return await redis.eval(text, len(keys), *keys, *args)
