"""Computes a feed's memory from its published messages alone, as any reader of the output topics can."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from stream.messages.message import Message
from stream.statistics.smoothing_state import Memory, identity, step
from stream.windows import Window


def recalled(bodies: Sequence[dict[str, Any]], marker: dict[str, Any], memory: Memory | None) -> Memory | None:
    """The memory after a window whose messages say ``bodies`` and ``marker``."""
    ends = [int(datetime.fromisoformat(marker["window"][end]).timestamp()) for end in ("start", "end")]
    upper, timezone = marker["clipping"]["upper"], marker["period"]["timezone"]
    typical = marker["memory"].get("typical")
    named = {"upper": upper, "timezone": timezone, "typical": typical}
    return step(memory, bodies, Window(*ends), **named, area=marker.get("area"))[0]


def recalled_from(windows: Sequence[Sequence[Message]]) -> Memory | None:
    """The memory after several windows, in the order in which their markers chain."""
    memory = None
    for messages in windows:
        *bodies, marker = (json.loads(message.value) for message in messages)
        assert marker["memory"]["before"] == identity(memory)
        memory = recalled(bodies, marker, memory)
        assert marker["memory"]["after"] == identity(memory)
    return memory
