"""Checks that a recording contains events of the feed, and otherwise refuses it with the reason."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from stream.config import Config
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.ingestion.refusals import Refusals
from stream.sources.file_kinds import seems_to_be
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages

_HELD = 100_000
"""Number of events that are searched for one that the feed accepts, before any event is sent."""
_AT_ONCE = 1_000


def require_events(path: Path, events: int, refusals: Refusals) -> None:
    """Raise :class:`RecordingError` with the reasons and the likely cause if no event of a recording can be used."""
    if events:
        return
    if not refusals.refused and not refusals.taken:
        raise RecordingError(f"{path} contains no events; name a recording")
    kind = None if refusals.taken else seems_to_be(path)
    reasons = [*refusals.told(), *([] if kind is None else [kind])]
    raise RecordingError("\n".join([f"{path}: none of its {refusals.refused} events can be used", *reasons]))


def recognised(blocks: Iterable[Messages], config: Config, path: Path, file_format: str) -> Iterator[Messages]:
    """All of ``blocks``. The first ones are read immediately, until there is an event that the feed accepts.

    Raises :class:`RecordingError` with the reasons if none of the first hundred thousand events is accepted.
    """
    # Any key will do, because these pseudonyms are discarded.
    decoder, refusals = Decoder(config, secrets.token_bytes(KEY_BYTES)), Refusals(config.feed, file_format)
    looked_at: list[Messages] = []
    source = iter(blocks)
    for block in source:
        looked_at.append(block)
        for at in range(0, len(block.values), _AT_ONCE):
            values = block.values[at : at + _AT_ONCE]
            refusals.add(values, decoder.decode(values, time.time_ns() // 1000))
            if refusals.taken or refusals.refused >= _HELD:
                break
        if refusals.taken or refusals.refused >= _HELD:
            break
    require_events(path, refusals.taken, refusals)
    return chain(looked_at, source)
