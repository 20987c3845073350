"""Checks that a recording contains events of the feed, and otherwise refuses it with the reason."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.feed import FeedConfig, SpeedUnit
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import bound_problem, speed_problem
from stream.diagnosis.users import events_as_users, everywhere_at_once
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format, user_field
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.file_kinds import seems_to_be
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages

_HELD = 100_000
"""Number of events that are searched for one that the feed accepts, before any event is sent."""
_COMPARED = 20_000
"""Number of accepted events whose speeds are compared with their positions."""
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Accepted:
    """What an operator accepts of a recording: speeds that positions contradict, and users that occur once.

    ``unit``: in which a reader of snapshots took the speeds, if that is not the unit of the events.
    """

    any_speed: bool = False
    users_are_events: bool = False
    unit: SpeedUnit | None = None


def require_events(path: Path, events: int, refusals: Refusals) -> None:
    """Raise :class:`RecordingError` with the reasons and the likely cause if no event of a recording can be used."""
    if events:
        return
    if not refusals.refused and not refusals.taken:
        raise RecordingError(f"{path} contains no events; name a recording")
    kind = None if refusals.taken else seems_to_be(path)
    reasons = [*refusals.told(), *([] if kind is None else [kind])]
    raise RecordingError("\n".join([f"{path}: none of its {refusals.refused} events can be used", *reasons]))


def require_users(path: Path, rows: NDArray[np.void], feed: FeedConfig, file_format: str, accepted: Accepted) -> None:
    """Raise :class:`RecordingError` if nearly every user of a recording occurs once, under either relation.

    Such a field names events: each would have a budget of its own, and no release would protect anybody.
    """
    problem = events_as_users(rows["user"], rows["time"].astype(np.int64), user_field(feed, file_format))
    if problem is not None and not accepted.users_are_events:
        raise RecordingError(f"{path}: {problem}")


def unit_problem(
    rows: NDArray[np.void], feed: FeedConfig, file_format: str, accepted: Accepted
) -> tuple[str, bool] | None:
    """Why the speeds of a recording cannot be right, or are doubtful, and whether it is to be refused."""
    if file_format in ("canonical", "declared"):
        remedy = "set feed.speed_unit = {}"
    else:
        remedy = "give another --format, or declare the fields and the unit {} in [feed]"
    unit = accepted.unit or feed_format(feed.model_copy(update={"format": file_format})).unit
    return speed_problem(rows, unit, remedy)


def notes_on(rows: NDArray[np.void], config: Config) -> list[str]:
    """What is odd about the events of a recording, and no reason to refuse it."""
    places = rows["lat"] * 1e-7, rows["lng"] * 1e-7
    odd = (
        bound_problem(rows["value"], config.speed.upper_quanta),
        everywhere_at_once(rows["user"], rows["time"].astype(np.int64), *places),
    )
    return [sentence for sentence in odd if sentence is not None]


def judged(
    rows: NDArray[np.void], refusals: Refusals, config: Config, path: Path, file_format: str, accepted: Accepted
) -> list[str]:
    """What is to be said of a recording's events. Raises :class:`RecordingError` for one that is refused.

    Under "participation" no speed refuses it, because what is sent must not depend on them.
    """
    require_events(path, len(rows), refusals)
    require_users(path, rows, config.feed, file_format, accepted)
    problem = unit_problem(rows, config.feed, file_format, accepted)
    if problem is not None and problem[1] and config.relation == NeighbouringRelation.VALUES and not accepted.any_speed:
        raise RecordingError(f"{path}: {problem[0]} If they are right as they are, give --any-speed")
    return [*([] if problem is None else [problem[0]]), *notes_on(rows, config)]


def recognised(
    blocks: Iterable[Messages],
    config: Config,
    path: Path,
    file_format: str,
    *,
    accepted: Accepted = Accepted(),
    note: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Messages]:
    """All of ``blocks``. The first ones are read immediately, until twenty thousand events are accepted or the source
    is silent.

    Raises :class:`RecordingError` with the reasons if none of the first hundred thousand events is accepted, or
    :func:`judged` refuses the accepted ones. ``note`` is called with what is odd about them if they are not refused for
    it.
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
    for sentence in judged(np.concatenate(rows), refusals, config, path, file_format, accepted):
        note(sentence)
    return chain(looked_at, source)
