"""Windows whose rows are final: sealed in every partition, read from all, deleted in all.

Nothing is read before every partition has sealed the window, and each read states the seal that it saw. So what was
read is all that the partitions stored before their seals, also if a shard was set back meanwhile: then its seal is
gone, or it is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis

from stream.storage.client import run
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.partitions import Call, KnownPartition, each, known_partitions
from stream.windows import utc_text

ROW = np.dtype(
    [("cell", "<u8"), ("user", "<u8"), ("time", "<i8"), ("lat", "<i4"), ("lng", "<i4"), ("value", "<i4")], align=False
)
"""One event in Redis: 36 bytes; time in µs UTC, lat and lng in 1e-7 degree, value in quanta."""

_PLACELESS = [name for name in ROW.names or () if name not in ("lat", "lng")]
PLACELESS_ROW = np.dtype([(name, ROW[name]) for name in _PLACELESS])
"""The part of a row, 28 bytes, that is read where no statistic needs positions."""

_BYTES_PER_READ = 2**19
"""What one read of a partition takes at least, unless fewer are left: it takes Redis about a millisecond, in which it
serves nobody else."""
_BLOBS_PER_READ = 2_000
"""Most blobs of one read: those of a quiet feed have a row each, and a MiB of them would take ten times as long."""
_PARTITIONS_AT_ONCE = 16
"""Partitions that are read at once: with half a MiB each, what is on its way stays small beside a window."""


class NotSealedError(RuntimeError):
    """A partition does not hold what the window was found due by, or lost its seal: it is read again."""

    def __init__(self, slot: int, partitions: list[str]) -> None:
        named = ", ".join(partitions[:5]) + (" and others" if len(partitions) > 5 else "")
        super().__init__(
            f"window {utc_text(slot)} is not sealed in {named or 'any partition'}: what a shard lost when it was set "
            "back is read again first"
        )


class _Place(NamedTuple):
    """Where reading a partition goes on: its number, the seal that was seen, and the next blob."""

    number: int
    seal: bytes | None
    blob: int


class SealedRows:
    """Seals, reads and deletes windows of one feed. Every call may be repeated."""

    def __init__(self, redis: Redis, feed: str, shared_ledger: str | None = None) -> None:
        self._redis: Any = redis  # typed by redis-py as answering str too; this client answers bytes
        self._keys = FeedKeys(feed, shared_ledger)

    async def partitions(self) -> dict[str, KnownPartition]:
        """The partitions that may hold rows."""
        named = self._keys
        return _known(*await run(self._redis, "partitions", [named.opened, named.partitions, named.gone]))

    async def seal_others(self, slot: int) -> dict[str, KnownPartition]:
        """Seal ``slot`` in partitions that are opened later. Returns the others, which may hold rows."""
        named = self._keys
        keys = [named.opened, named.partitions, named.gone, named.sealed]
        return _known(*await run(self._redis, "seal", keys, slot))

    async def seal(self, slot: int, least: Mapping[str, int] | None = None) -> None:
        """Seal ``slot`` in every partition: later rows are late, and the stored rows are those that will be released.

        ``least``: next offsets by which the window was found due; a partition that stored less is not sealed, because
        its shard was set back since. Raises :class:`NotSealedError` if a partition is not sealed.
        """
        partitions, bounds = await self.seal_others(slot), least or {}
        calls: list[Call] = []
        for name, known in partitions.items():
            part = PartKeys(self._keys, name)
            keys = [part.progress, part.sealed, *([part.slots] if known.gone else [])]
            calls.append((keys, [slot, bounds.get(name, ""), int(known.restart is not None)]))
        answers = await each(self._redis, "seal_part", calls) if calls else []
        if refused := [name for name, sealed in zip(partitions, answers, strict=True) if not sealed]:
            raise NotSealedError(slot, refused)

    async def read(self, slot: int, *, positions: bool = True) -> NDArray[np.void]:
        """Every row of ``slot``, in order of partitions and arrival, without lat and lng if ``positions`` are not
        needed.

        Raises :class:`NotSealedError` unless every partition has sealed it.
        """
        stored, names = bytearray(), list(partitions := await self.partitions())
        waiting = [_Place(number, None, 0) for number in range(len(names))]
        while waiting:
            turn, waiting = waiting[:_PARTITIONS_AT_ONCE], waiting[_PARTITIONS_AT_ONCE:]
            calls = [self._read_call(slot, name := names[place.number], partitions[name], place.blob) for place in turn]
            left = []
            for place, answer in zip(turn, await each(self._redis, "read_part", calls), strict=True):
                if not answer or place.seal not in (None, answer[0]):
                    raise NotSealedError(slot, [names[place.number]])
                seal, last, *blobs = answer
                rows = np.frombuffer(b"".join(blobs), dtype=ROW)
                stored += (rows if positions else rows[_PLACELESS].astype(PLACELESS_ROW)).data.cast("B")
                if not last:
                    left.append(_Place(place.number, seal, place.blob + len(blobs)))
            waiting = left + waiting
        return np.frombuffer(stored, dtype=ROW if positions else PLACELESS_ROW)

    def _read_call(self, slot: int, partition: str, known: KnownPartition, blob: int) -> Call:
        part = PartKeys(self._keys, partition)
        keys = [part.sealed, part.rows(slot), *([part.slots] if known.gone else [])]
        return keys, [slot, blob, _BYTES_PER_READ, _BLOBS_PER_READ]

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of a released slot. It stays sealed; where a shard is away it is deleted later."""
        await self._drop(slot, await self.partitions())

    async def discard(self, slot: int) -> None:
        """Delete the rows of a slot that is never released, and let no more of it come."""
        await self._drop(slot, await self.seal_others(slot))

    async def _drop(self, slot: int, partitions: dict[str, KnownPartition]) -> None:
        calls: list[Call] = []
        for name, known in partitions.items():
            part = PartKeys(self._keys, name)
            calls.append(([part.slots, part.sealed, part.rows(slot)], [slot, int(not known.gone)]))
        if calls:
            await each(self._redis, "drop_part", calls)


def _known(opened: list[bytes], listed: list[bytes], gone: list[bytes]) -> dict[str, KnownPartition]:
    return known_partitions(dict(zip(opened[::2], opened[1::2], strict=True)), listed, gone)
