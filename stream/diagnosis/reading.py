"""Reads recordings as the service does: rows of the events that it takes, and why it refuses the others."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpcore.relation import NeighbouringRelation
from stream.config import Config, find_config, load_config
from stream.config.feed import FeedConfig
from stream.config.search import template
from stream.config.section import BoundingBox
from stream.diagnosis.refusals import Refusals
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import load_user_key
from stream.sources.derived_events import DerivedEvents, with_speeds
from stream.sources.messages import Messages
from stream.sources.opening import open_recording
from stream.sources.replay import in_time_order
from stream.storage.row_store import ROW

Progress = Callable[[int, int], None]
_ANY_AGE = timedelta(days=36500)


def inspection_config(given: Config | None) -> Config:
    """The configuration by which a source is read: the ``given`` one, else the shipped one with the globe as domain."""
    if given is not None:
        return given
    shipped = load_config(find_config(template("values"), "values"))
    globe = BoundingBox(south=-90, west=-180, north=90, east=180)
    feed = FeedConfig(name="inspected", topic="inspected", timezone="UTC", domain=globe)
    return shipped.model_copy(update={"feed": feed})


def ageless(config: Config) -> Config:
    """The configuration without a limit on the age of events, which is meant for live feeds."""
    return config.model_copy(update={"window": config.window.model_copy(update={"given_max_age": _ANY_AGE})})


def read_recording(
    config: Config,
    path: Path,
    file_format: str,
    on_progress: Progress = lambda done, size: None,
    key: bytes | None = None,
    most: float = math.inf,
) -> tuple[npt.NDArray[np.void], Refusals]:
    """All valid events of a recording as rows, and why others were refused. Events may have any age.

    ``key``: of the pseudonyms, if it is not the configured one. ``most``: no further block is read after so many
    events. Raises :class:`~stream.sources.lines.RecordingError`.
    """
    one_each = config.relation == NeighbouringRelation.PARTICIPATION
    with open_recording(path, file_format, config.feed, one_each=one_each) as recording:

        def blocks() -> Iterator[Messages]:
            for block in recording:
                yield block
                on_progress(recording.position, recording.size)

        if not config.feed.derives_speeds:
            return read_messages(config, blocks(), key, file_format, most)
        events = DerivedEvents(config.feed, config.slotting)
        rows, refusals = read_messages(config, with_speeds(in_time_order(blocks()), events), key, file_format)
    left_out = events.tally.refused - Counter({"unreadable": events.tally.refused["unreadable"]})
    refusals.leave_out(left_out + Counter({"without-speed": events.tally.without_speed}), events.tally.derived)
    return rows, refusals


def read_messages(
    config: Config,
    blocks: Iterable[Messages],
    key: bytes | None = None,
    file_format: str = "canonical",
    most: float = math.inf,
) -> tuple[npt.NDArray[np.void], Refusals]:
    """All valid events of messages as rows, and why others were refused. Events may have any age.

    ``file_format``: of the recording of which they were made; an event that could not be converted is as it was.
    ``most``: no further block is read after so many events.
    """
    key = load_user_key(config.privacy.user_key_file) if key is None else key
    decoder, now_us = Decoder(ageless(config), key), time.time_ns() // 1000
    parts, refusals = [np.zeros(0, dtype=ROW)], Refusals(config.feed, file_format)
    for block in blocks:
        batch = decoder.decode(block.values, now_us)
        parts.append(batch.rows)
        refusals.add(block.values, batch)
        if refusals.taken + refusals.refused >= most:
            break
    return np.concatenate(parts), refusals
