"""State of windows in progress in Redis: plan, committed bytes, memory of smoothing, and records of releases."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec
from redis.exceptions import ResponseError

from stream.storage.client import run
from stream.storage.keys import OfFeed
from stream.storage.ledger import AlreadyReleasedError, OutOfTurnError
from stream.windows import utc_text


class ChargesGoneError(RuntimeError):
    """The drawn plan is not marked as paid, because Redis lost its charges. Nothing was committed."""


class CommitOutcome(Enum):
    """The result of an attempt to commit."""

    COMMITTED = 1
    OTHERS_WERE_FIRST = 0
    WINDOW_RELEASED = -1
    STATE_MOVED = 2
    """Number, memory or link are others than the bytes were made with, so the bytes have to be made again."""


class Released(msgspec.Struct, frozen=True):
    """The record of a released window in Redis. ``retained``: what its plan chose, "" where there was no choice."""

    messages: int
    digest: str
    suppressed: int = 0
    withheld: bool = False
    sequence: int = 0
    retained: str = ""


class Carried(NamedTuple):
    """What a feed carries from window to window: the memory of smoothing (empty: none), the last marker's link."""

    memory: bytes = b""
    link: bytes = b""


class ReleaseStore(OfFeed):
    """Stores plans, committed bytes, memory and records of a feed's releases, as bytes, without interpreting them."""

    async def released(self, slot: int) -> Released | None:
        """The record of a released window; None if the window is not released."""
        record = await self._redis.hget(self._keys.closed, str(slot))
        return None if record is None else msgspec.json.decode(record, type=Released)

    async def remember(self, slot: int, released: Released, outbox: bytes) -> bool:
        """Record that the window is released. False, with nothing recorded, if ``outbox`` is not what is committed."""
        keys = (self._keys.closed, self._keys.outbox(slot))
        record = msgspec.json.encode(released)
        return bool(await run(self._redis, "remember", keys, slot, record, outbox))

    async def set_aside(self, slot: int, reason: str) -> bool:
        """Set the window aside, because its content fails. Its rows are kept until its period can no longer be
        released.

        False, with nothing changed, if it is committed: then it only has to be published.
        """
        keys = (self._keys.set_aside, self._keys.sealed, self._keys.outbox(slot))
        return bool(await run(self._redis, "set_aside", keys, slot, reason))

    async def died_over(self, slot: int) -> int:
        """Count that the closing process died over ``slot``, whichever worker saw it. Returns how often it did."""
        return int(await run(self._redis, "died", [self._keys.deaths], slot))

    async def deadly(self) -> int | None:
        """The window over which the closing process died last; None if it never died."""
        deaths = await self._redis.get(self._keys.deaths)
        return None if deaths is None else int(deaths.partition(b" ")[0])

    async def slots_set_aside(self) -> set[int]:
        """Timeslots of windows that were set aside."""
        return {int(slot) for slot in await self._redis.hkeys(self._keys.set_aside)}

    async def reasons(self) -> dict[int, str]:
        """Timeslots of windows that were set aside, oldest first, with the reasons."""
        reasons = await self._redis.hgetall(self._keys.set_aside)
        return {slot: reasons[str(slot).encode()].decode() for slot in sorted(map(int, reasons))}

    async def take_up(self, slot: int) -> bool:
        """Let a window that was set aside be closed again, after the step that it reached. False if it was not set
        aside.

        Raises :class:`OutOfTurnError` once a later window was planned.
        """
        named = self._keys
        keys = (named.set_aside, named.first_slot, named.planned)
        try:
            return bool(await run(self._redis, "take_up", keys, slot))
        except ResponseError as error:
            raise OutOfTurnError.of(slot, str(error)) or error from None

    async def released_or_committed(self, slot: int) -> tuple[Released | None, bytes | None]:
        """The record of the release and the committed bytes, read at the same moment."""
        keys = self._keys.closed, self._keys.outbox(slot)
        record, outbox = await run(self._redis, "released_or_committed", keys, slot)
        return None if record is None else msgspec.json.decode(record, type=Released), outbox

    async def committed(self, slots: Sequence[int]) -> list[int]:
        """The windows of ``slots`` that are committed, or were released but not cleaned up."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for slot in slots:
                pipe.exists(self._keys.outbox(slot))
                pipe.hexists(self._keys.closed, str(slot))
            answers = await pipe.execute()
        return [slot for slot, *evidence in zip(slots, answers[::2], answers[1::2], strict=True) if any(evidence)]

    async def plan(self, slot: int) -> bytes | None:
        """The stored plan."""
        stored: bytes | None = await self._redis.get(self._keys.plan(slot))
        return stored

    async def latest_planned(self) -> int | None:
        """The latest window that was ever planned. Earlier ones are released only if they are committed already."""
        planned = await self._redis.get(self._keys.planned)
        return None if planned is None else int(planned)

    async def unfinished(self) -> int | None:
        """The window that is planned, and neither committed nor set aside. There is at most one."""
        slot = await self.latest_planned()
        if slot is None or await self.plan(slot) is None or await self.outbox(slot) is not None:
            return None
        return None if slot in await self.slots_set_aside() else slot

    async def store_plan(self, slot: int, plan: bytes) -> bytes:
        """Store ``plan`` unless another one is stored. Returns the stored plan.

        Raises :class:`OutOfTurnError` if a later window was planned, or the window that was planned last is not
        finished, and :class:`AlreadyReleasedError` if another worker released the window meanwhile.
        """
        named = self._keys
        keys = (named.plan(slot), named.planned, named.set_aside, named.closed)
        begins = (named.plan(0).removesuffix("0"), named.outbox(0).removesuffix("0"))
        try:
            stored: bytes = await run(self._redis, "store_plan", keys, slot, plan, *begins)
        except ResponseError as error:
            if "RELEASED" in str(error):
                raise AlreadyReleasedError(f"window {utc_text(slot)} was released by another worker") from None
            raise OutOfTurnError.of(slot, str(error)) or error from None
        return stored

    async def replace_plan(self, slot: int, old: bytes, new: bytes) -> bytes | None:
        """Replace ``old`` by ``new`` unless another worker replaced it. Returns the stored plan."""
        stands: bytes | None = await run(self._redis, "replace", [self._keys.plan(slot)], old, new)
        return stands

    async def outbox(self, slot: int) -> bytes | None:
        """The committed bytes."""
        stored: bytes | None = await self._redis.get(self._keys.outbox(slot))
        return stored

    async def memory(self) -> bytes:
        """The state of smoothing over windows; empty if there is none."""
        return await self._redis.get(self._keys.memory) or b""

    async def carried(self) -> Carried:
        """What the last committed window left, read at one moment."""
        memory, link = await self._redis.mget(self._keys.memory, self._keys.link)
        return Carried(memory or b"", link or b"")

    async def replace_link(self, old: bytes, new: bytes) -> bool:
        """Replace the link ``old`` by ``new``. False if it was another one."""
        return bool(await run(self._redis, "replace", [self._keys.link], old, new) == new)

    async def commit(
        self, slot: int, outbox: bytes, before: Carried, after: Carried, plan_digest: str, number: int
    ) -> CommitOutcome:
        """Commit ``outbox`` as window ``number``, made with ``before``; it leaves ``after`` (an empty memory:
        unchanged).

        Raises :class:`ChargesGoneError` if the plan with ``plan_digest`` is not marked as paid, and
        :class:`OutOfTurnError` if a later window was planned or this one was set aside.
        """
        named = self._keys
        keys = [named.outbox(slot), named.closed, named.memory, named.charged(slot), named.sequence, named.commits]
        keys += [named.link, named.planned, named.set_aside]
        args = (slot, outbox, before.memory, after.memory, plan_digest, number, before.link, after.link)
        try:
            return CommitOutcome(await run(self._redis, "commit", keys, *args))
        except ResponseError as error:
            if "CHARGES" in str(error):
                raise ChargesGoneError(str(error)) from None
            raise OutOfTurnError.of(slot, str(error)) or error from None

    async def forget(self, slot: int) -> None:
        """Delete what was needed to release the window, if its release is recorded."""
        named = self._keys
        keys = (named.closed, named.plan(slot), named.charged(slot), named.outbox(slot))
        await run(self._redis, "forget", keys, slot)
