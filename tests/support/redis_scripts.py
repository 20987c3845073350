"""Scripts of Redis with a line exchanged, as planted bugs have it, and how often scripts ran."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stream.storage import client


@contextmanager
def altered_script(name: str, line: str, other: str) -> Iterator[None]:
    """Let the script ``name`` have ``other`` in place of ``line``, which it has once."""
    text_of = client.text_of
    assert text_of(name).count(line) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            client, "text_of", lambda asked: text_of(asked).replace(line, other) if asked == name else text_of(asked)
        )
        yield


def runs_of_scripts(commands: dict[str, Any]) -> int:
    """How often scripts ran, by Redis's statistics of ``commands``: a digest that it did not know ran nothing."""
    named = [commands.get(f"cmdstat_{name}", {}) for name in ("eval", "evalsha")]
    return sum(stats.get("calls", 0) - stats.get("failed_calls", 0) for stats in named)
