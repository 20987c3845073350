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
from stream.diagnosis.refusals import Refusals
from stream.diagnosis.speeds import bound_problem, check_rows
from stream.diagnosis.users import events_as_users, everywhere_at_once
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format, user_field
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.file_kinds import seems_to_be
from stream.sources.lines import RecordingError
from stream.sources.messages import Messages
from stream.sources.snapshot_events import SnapshotEvents

_HELD = 100_000
"""Number of events that are searched for one that the feed accepts, before any event is sent."""
_COMPARED = 20_000
"""Number of accepted events whose speeds are compared with their positions."""
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Accepted:
    """What an operator accepts of a recording: speeds that positions contradict, and users that occur once.

    ``reader``: of the snapshots of which it was made, if it was. Each vehicle occurs once in one.
    """

    any_speed: bool = False
    users_are_events: bool = False
    reader: SnapshotEvents | None = None

    @property
    def is_one_snapshot(self) -> bool:
        """Whether nothing was read but one snapshot."""
        return self.reader is not None and self.reader.tally.snapshots < 2


def require_events(path: Path, refusals: Refusals) -> None:
    """Raise :class:`RecordingError` with the reasons and the likely cause if no event of a recording can be used."""
    if refusals.taken:
        return
    kind = seems_to_be(path)
    if not refusals.refused:
        raise RecordingError(f"{path} contains no events; name a recording")
    reasons = [*refusals.told(), *([] if kind is None else [kind])]
    raise RecordingError("\n".join([f"{path}: none of its {refusals.refused} events can be used", *reasons]))


def speed_problem(
    rows: NDArray[np.void], config: Config, file_format: str, accepted: Accepted
) -> tuple[str, bool] | None:
    """Why the speeds of a recording cannot be right, or are doubtful, with the remedy; None if positions agree.

    And whether it is to be refused: if they cannot be right, and another unit would fit.
    """
    own = feed_format(config.feed.model_copy(update={"format": file_format})).unit
    check = check_rows(rows, own if accepted.reader is None else accepted.reader.unit)
    if check.others:
        return (
            f"the speeds of {check.others:.0%} of the vehicles fit their positions in another unit than the others': "
            "have them sent in one unit, or let all be derived: feed.speeds = 'derived'."
        ), False
    if not (check.contradicts or check.is_doubtful):
        return None
    if not check.fits:
        return f"{check.sentence()}: hexveil inspect says more.", False
    remedy = f"set feed.speed_unit = {check.fits[0]!r}"
    if file_format not in ("canonical", "declared"):
        remedy = f"give another --format, or declare the fields and the unit {check.fits[0]!r} in [feed]"
    if len(check.fits) > 1 or check.is_doubtful:
        remedy = f"ask whoever runs the feed, and {remedy}"
    return f"{check.sentence()}: {remedy}.", check.contradicts


def judged(
    rows: NDArray[np.void], refusals: Refusals, config: Config, path: Path, file_format: str, accepted: Accepted
) -> list[str]:
    """What is odd about the events of a recording. Raises :class:`RecordingError` for one that is refused.

    A field that names events is refused under either relation: each would have a budget of its own. Under
    "participation" no speed refuses, because what is sent or released must not depend on them, and nor does a
    recording without events.
    """
    values, times = config.relation == NeighbouringRelation.VALUES, rows["time"].astype(np.int64)
    if values:
        require_events(path, refusals)
    once = events_as_users(rows["user"], times, user_field(config.feed, file_format))
    if once is not None and not (accepted.users_are_events or accepted.is_one_snapshot):
        raise RecordingError(f"{path}: {once}")
    problem = speed_problem(rows, config, file_format, accepted) if config.value.is_speed else None
    if problem is not None and problem[1] and values and not accepted.any_speed:
        raise RecordingError(f"{path}: {problem[0]} If they are right as they are, give --any-speed")
    odd = (
        None if problem is None else problem[0],
        bound_problem(rows["value"], config.value),
        everywhere_at_once(rows["user"], times, rows["lat"] * 1e-7, rows["lng"] * 1e-7),
    )
    return [sentence for sentence in odd if sentence is not None]


def recognised(
    blocks: Iterable[Messages],
    config: Config,
    path: Path,
    file_format: str,
    *,
    accepted: Accepted = Accepted(),
    note: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Messages]:
    """All of ``blocks``. The first are read immediately, until 20 000 events are accepted or the source is silent.

    Raises :class:`RecordingError` with the reasons if none of the first hundred thousand events is accepted, or
    :func:`judged` refuses the accepted ones. ``note`` is called with what is odd about them otherwise.
    """
    # Any key will do, because these pseudonyms are discarded.
    decoder, refusals = Decoder(config, secrets.token_bytes(KEY_BYTES)), Refusals(config.feed, file_format)
    looked_at, rows, source = list[Messages](), list[NDArray[np.void]](), iter(blocks)
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
            if enough := refusals.taken >= _COMPARED or refusals.taken + refusals.refused >= _HELD:
                break
        if enough:
            break
    require_events(path, refusals)
    for sentence in judged(np.concatenate(rows), refusals, config, path, file_format, accepted):
        note(sentence)
    return chain(looked_at, source)
