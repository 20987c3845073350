"""Releases a recording without Kafka, with the windows, ledger and mechanisms of the service. Releases are lines."""

import asyncio
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import UnsupportedOperation
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
from redis.asyncio import Redis

from dpcore.noise import Noise
from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.diagnosis.reading import Accepted, Progress, judged, read_messages, read_recording
from stream.diagnosis.refusals import Refusals
from stream.ingestion.formats import user_field, user_identity
from stream.ingestion.pseudonyms import key_fingerprint, load_user_key
from stream.local.server import RedisServer
from stream.messages.lines import line_of
from stream.messages.message import WINDOW, Message
from stream.protocol.release_protocol import ContentError, ReleaseProtocol, signer_of, statistics_of
from stream.sources.messages import Messages
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, RowStore, by_slot
from stream.storage.shared_ledger import NO_TOPIC, Common, SharedLedger
from stream.windows import SpanError, Window, utc_text


@dataclass(frozen=True)
class OfflineSummary:
    """Summary of an offline replay; inside the trust boundary. ``outside``: valid events before or after the span.

    ``notes``: what is odd about the events, like speeds that cannot be right. ``derived``: events with a speed derived
    from positions. ``withheld``: windows of which a close marker alone was released. ``set_aside``: why windows were
    not released, which failed for their content in this run or an earlier one.
    """

    events: int
    refused: dict[str, int]
    windows: list[str]
    withheld: list[str]
    already_released: int
    messages: int
    charged: dict[str, tuple[int, int]]
    ledger_unit: str
    seconds: float
    outside: int
    examples: dict[str, str]
    likely_cause: str | None
    derived: int = 0
    notes: list[str] = field(default_factory=list)
    set_aside: tuple[str, ...] = ()


@dataclass
class MemoryRows:
    """Rows of a recording by slot. The recording is complete, so no event is late."""

    rows: dict[int, npt.NDArray[np.void]]

    async def seal(self, slot: int) -> None:
        """Do nothing, because no further rows can arrive."""

    async def read(self, slot: int, *, positions: bool = True) -> npt.NDArray[np.void]:
        """Rows of one slot, with their positions."""
        return self.rows.get(slot, np.zeros(0, dtype=ROW))

    async def drop_rows(self, slot: int) -> None:
        """Free the memory."""
        self.rows.pop(slot, None)


@dataclass
class LinePublisher:
    """Writes each message as one line. ``windows`` and ``withheld``: starts of windows whose close markers it wrote."""

    out: TextIO
    messages: int = 0
    windows: list[str] = field(default_factory=list)
    withheld: list[str] = field(default_factory=list)

    async def publish(self, messages: Sequence[Message]) -> None:
        """Write all messages in order."""
        for message in messages:
            self.out.write(line_of(message))
            if message.topic == WINDOW:
                marker = json.loads(message.value)
                (self.withheld if "withheld" in marker else self.windows).append(marker["window"]["start"])
        self.messages += len(messages)

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Make sure that what was written to a file survives a power cut."""
        self.out.flush()
        with suppress(UnsupportedOperation):  # a buffer in memory has no file
            number = self.out.fileno()
            if stat.S_ISREG(os.fstat(number).st_mode):
                os.fsync(number)


def _within(rows: npt.NDArray[np.void], span: Window, path: Path, relation: str) -> npt.NDArray[np.void]:
    """Rows in ``span``. Under "values" raises :class:`SpanError` if there are none."""
    inside = rows[(rows["time"] >= span.start * 1_000_000) & (rows["time"] < span.end * 1_000_000)]
    if relation == NeighbouringRelation.VALUES and not len(inside):
        first, last = (utc_text(int(edge) // 1_000_000) for edge in (rows["time"].min(), rows["time"].max()))
        raise SpanError(
            f"{path}: none of its {len(rows)} events lies between --from and --until; they are from {first} to {last}, "
            "so name a span that overlaps it"
        )
    return inside


def split_by_slot(rows: npt.NDArray[np.void], config: Config) -> dict[int, npt.NDArray[np.void]]:
    """Rows of each timeslot, oldest slot first."""
    starts = config.slotting.slot_starts(rows["time"].astype(np.int64))
    return {slot: rows[chosen] for slot, chosen in by_slot(starts)}


def replay_offline(
    config: Config,
    path: Path,
    file_format: str,
    out: TextIO,
    *,
    span: Window | None = None,
    state: Path | None = None,
    accepted: Accepted = Accepted(),  # noqa: B008 - immutable
    on_progress: Progress = lambda events: None,
    blocks: Iterable[Messages] | None = None,
) -> OfflineSummary:
    """Release every window of a recording to ``out``. ``blocks``: its canonical events, if ``path`` is not to be read
    for them.

    ``span``: only events in it count, and only windows that begin in it are released. It is required under
    "participation", where every window of it is released, because which ones are released must not depend on the
    recording. Raises :class:`SpanError`. ``state``: folder of the embedded Redis. With it, the ledger is kept after the
    run, and a released window is not released again. Without it, every run starts with full budgets, so the losses of
    two published runs add up.

    ``accepted``: what is not refused. Under "participation" speeds in another unit never are, because what is released
    must not depend on the recording; the summary says it. A field that names events is refused under either relation.
    """
    started = time.monotonic()
    if config.relation == NeighbouringRelation.PARTICIPATION and span is None:
        raise SpanError(
            "under relation 'participation' it must not depend on the recording which windows are released; name the "
            "time that it is known to cover, like --from 2017-03-21 --until 2017-03-22"
        )
    if blocks is None:
        rows, refusals = read_recording(config, path, file_format, on_progress)
    else:
        rows, refusals = read_messages(config, blocks)
    notes = judged(rows, refusals, config, path, file_format, accepted)
    if span is not None:
        rows = _within(rows, span, path, config.relation)
    by_slot = split_by_slot(rows, config)
    slots = (
        sorted(by_slot)
        if config.relation == NeighbouringRelation.VALUES or span is None
        else config.slotting.slots_in(span)
    )
    with RedisServer(state, appendfsync="always" if state else "no") as server:
        summary = asyncio.run(
            _release(config, server.url, by_slot, slots, len(rows), refusals, out, started, file_format)
        )
    return replace(summary, notes=notes)


async def claim_feed(config: Config, redis: Redis, fingerprint: str, file_format: str | None = None) -> Ledger:
    """The ledger of an offline feed, bound to its policy, to the field that identifies users, and to the user key.

    ``file_format``: of the recordings; None: the feed's topic is imitated.
    Raises :class:`stream.storage.ledger.LedgerError` and :class:`stream.storage.row_store.StateError` if it is bound to
    others.
    """
    ledger, shared = Ledger.of(redis, config), SharedLedger.of(redis, config)
    await ledger.claim_policy(config.ledger_policy)
    await ledger.claim_identity(user_identity(config.feed, file_format))
    if shared is not None:
        await shared.bind(Common(user_field(config.feed, file_format), NO_TOPIC, fingerprint))
    await RowStore.of(redis, config).claim_key(fingerprint)
    # An operator who replays a recording states that it was not released before. A feed that is refused does not join.
    await ledger.start_generation(birth=0, budget=config.privacy.ledger_budget)
    return ledger


async def _close_each(protocol: ReleaseProtocol, slots: list[int]) -> int:
    """Close ``slots``, oldest first; what fails for its content is set aside. Returns how many were released before."""
    already, store = 0, protocol.store
    unfinished = await store.unfinished()
    if unfinished is not None and unfinished not in slots:
        why = f"the run that planned window {utc_text(unfinished)} was interrupted, and this recording lacks it"
        await store.set_aside(unfinished, why)
    for slot in slots:
        already += await store.released(slot) is not None
        if slot not in await store.slots_set_aside():
            with suppress(ContentError):  # which sets it aside
                await protocol.close(slot)
    return already


async def _release(
    config: Config,
    url: str,
    by_slot: dict[int, npt.NDArray[np.void]],
    slots: list[int],
    events: int,
    refusals: Refusals,
    out: TextIO,
    started: float,
    file_format: str,
) -> OfflineSummary:
    async with Redis.from_url(url) as redis:
        fingerprint = key_fingerprint(load_user_key(config.privacy.user_key_file))
        ledger = await claim_feed(config, redis, fingerprint, file_format)
        # Also a higher one than before: this Redis runs for one replay alone, so no worker with a lower one uses it.
        if (shared := SharedLedger.of(redis, config)) is not None:
            await shared.state_budget(config.privacy.ledger_budget)
        publisher = LinePublisher(out)
        rows = MemoryRows(dict(by_slot))
        refused: Counter[str] = Counter()
        protocol = ReleaseProtocol(
            statistics_of(config),
            redis,
            rows,
            ledger,
            publisher,
            Noise(),
            signer_of(config),
            on_uncounted=lambda read: refused.update(read.refused),
        )
        already = await _close_each(protocol, slots)
        aside = await protocol.store.reasons()
        charged = {period: await ledger.total(period) for period in await ledger.periods()}
    return OfflineSummary(
        events=events - refused.total(),
        refused=dict(refusals.counts + refused),
        windows=publisher.windows,
        withheld=publisher.withheld,
        already_released=already,
        messages=publisher.messages,
        charged=charged,
        ledger_unit=config.privacy.ledger_unit[0],
        seconds=time.monotonic() - started,
        outside=refusals.taken - events,
        examples=refusals.examples(),
        likely_cause=refusals.likely_cause(),
        derived=refusals.derived,
        set_aside=tuple(aside.values()),
    )
