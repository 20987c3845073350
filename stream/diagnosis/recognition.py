"""Checks that a recording contains events of the feed, and otherwise refuses it with the reason."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import FeedConfig
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import check_rows
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.file_kinds import seems_to_be
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages

_HELD = 100_000
"""Number of events that are searched for one that the feed accepts, before any event is sent."""
_COMPARED = 20_000
"""Number of accepted events whose speeds are compared with their positions."""
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


def speed_problem(rows: NDArray[np.void], feed: FeedConfig, file_format: str) -> tuple[str, bool] | None:
    """Why the speeds of a recording cannot be right, or are doubtful, with the remedy; None if they agree with the positions.

    And whether it is to be refused: if they cannot be right, and another unit would fit.
    """
    declared = feed_format(feed.model_copy(update={"format": file_format})).unit
    check = check_rows(rows, declared)
    if not (check.contradicts or check.is_doubtful):
        return None
    if check.unit is None:
        remedy = "hexveil inspect says more"
    elif file_format in ("canonical", "declared"):
        remedy = f"set feed.speed_unit = {check.unit!r}"
    else:
        remedy = "give another --format, or declare the fields and the unit in [feed]"
    if len(check.units) > 1 or check.is_doubtful:
        remedy = f"ask whoever runs the feed, and {remedy}"
    return f"{check.sentence(declared)}: {remedy}.", check.contradicts and check.unit is not None


def require_speeds(path: Path, problem: tuple[str, bool] | None) -> None:
    """Raise :class:`RecordingError` if :func:`speed_problem` says that the speeds are in another unit than declared."""
    if problem is not None and problem[1]:
        raise RecordingError(f"{path}: {problem[0]} If they are right as they are, give --any-speed")


def recognised(
    blocks: Iterable[Messages],
    config: Config,
    path: Path,
    file_format: str,
    *,
    any_speed: bool = False,
    note: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Messages]:
    """All of ``blocks``. The first ones are read immediately, until twenty thousand events are accepted or the source is silent.

    Raises :class:`RecordingError` with the reasons if none of the first hundred thousand events is accepted, and, under "values"
    without ``any_speed``, if the speeds of the accepted ones are in another unit: under "participation" what is sent must not depend
    on them. ``note`` is called with what is wrong with their
    speeds if they are not refused for it.
    """
    # Any key will do, because these pseudonyms are discarded.
    decoder, refusals = Decoder(config, secrets.token_bytes(KEY_BYTES)), Refusals(config.feed, file_format)
    looked_at: list[Messages] = []
    rows: list[NDArray[np.void]] = []
    source = iter(blocks)
    for block in source:
        if not block.values:
            if refusals.taken:
                break
            continue
        looked_at.append(block)
        for at in range(0, len(block.values), _AT_ONCE):
            values = block.values[at : at + _AT_ONCE]
            batch = decoder.decode(values, time.time_ns() // 1000)
            refusals.add(values, batch)
            rows.append(batch.rows)
            if refusals.taken >= _COMPARED or refusals.taken + refusals.refused >= _HELD:
                break
        if refusals.taken >= _COMPARED or refusals.taken + refusals.refused >= _HELD:
            break
    require_events(path, refusals.taken, refusals)
    problem = speed_problem(np.concatenate(rows), config.feed, file_format)
    if config.relation == NeighbouringRelation.VALUES and not any_speed:
        require_speeds(path, problem)
    if problem is not None:
        note(problem[0])
    return chain(looked_at, source)
