"""The shipped :func:`stream.protocol.close_process.close_windows`, run one request at a time by a scheduler instead of
an event loop.

Redis's client and Kafka's are replaced at the seam: every call suspends the coroutine with a :class:`Request`. What a
coroutine does follows from the answers that it has got. So the state of a worker is its list of answers: a node of a
tree. A node that needs its coroutine a second time runs it from the beginning, with the same answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CoroutineType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from dpcore.noise import Noise
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message, window_message
from stream.protocol import close_process, ledger_check
from stream.protocol.close_process import CloseReport
from stream.protocol.publishing import PublishError
from stream.protocol.release_protocol import ReleaseProtocol
from stream.statistics.plan import Due, Plan
from stream.storage.keys import FeedKeys
from stream.storage.release_store import ReleaseStore
from stream.storage.row_store import RowStore
from stream.terms import Terms
from stream.windows import utc_text
from tests.model.server import Command

DRAW = re.compile(r"draw \d+ of \d+")
"""How bytes name the draw that they were made from."""


@dataclass(frozen=True)
class Request:
    """What a worker asks of Redis (``commands``), or of Kafka ("publish", "markers" and "confirm")."""

    kind: str
    commands: tuple[Command, ...] = ()
    messages: tuple[Message, ...] = ()
    single: bool = False

    def __await__(self) -> Generator[Request, Any, Any]:
        return (yield self)


class SteppedRedis(Redis):
    """A client whose calls are requests. Of the commands of closing only HGETALL needs its answer parsed."""

    def __init__(self, register: Callable[[str], None]) -> None:
        """``register``: tells the server a script before it is asked for."""
        super().__init__()
        self.register = cache(register)

    def register_script(self, script: Any) -> Any:
        self.register(script)
        return super().register_script(script)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "INFO":
            return {"maxmemory": 0, "maxmemory_policy": "noeviction"}
        if args[0] == "TIME":
            return 0, 0
        if args[0] == "EVAL":
            self.register(args[1])
        answer = await Request("redis", (args,), single=True)
        return dict(zip(answer[::2], answer[1::2], strict=True)) if args[0] == "HGETALL" else answer

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        raise AssertionError("a pipeline is several requests, of which others see some")

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """There is no connection."""


class SteppedPublisher:
    """The broker takes the releases, then the close marker; then all of them are read back."""

    async def stop(self) -> None:
        pass

    async def publish(self, messages: Sequence[Message]) -> None:
        await Request("publish", messages=tuple(messages[:-1]))
        await Request("publish", messages=tuple(messages[-1:]))

    async def confirm(self, messages: Sequence[Message]) -> None:
        if not await Request("confirm", messages=tuple(messages)):
            raise PublishError("messages were not read back")


class PlainStatistics:
    """In the place of the mathematics, which touch no server: a window costs each of its users ε, and bytes name their
    draw."""

    fresh = 0
    """Number of the next draw; the scheduler sets it."""
    drew: Plan | None = None
    """The plan of the last draw; the scheduler takes it away."""

    def __init__(self, config: Config) -> None:
        self.terms, self.may_withhold = Terms.of(config), True
        self.price = round(config.privacy.epsilon * 1e6)

    def arrange(self, rows: Any, window: Any) -> Any:
        return SimpleNamespace(counts=SimpleNamespace(users=np.unique(rows["user"])), beyond_limits=0, refused={})

    def withhold(self, due: Due, budget: int) -> Plan | None:
        return Plan(due=due, budget=budget, withheld=True)

    def plan(self, rows: Any, due: Due, allowance: Any, memory: bytes) -> Plan:
        users = rows.counts.users[allowance.left >= self.price]
        charges = np.full(len(users), self.price)
        return Plan(due=due, budget=allowance.budget, users=users, charges=charges)

    def draw(self, plan: Plan, rows: Any, noise: Any) -> str:
        PlainStatistics.drew = plan
        return f"draw {self.fresh} of {plan.window.start}"

    def compose(self, plan: Plan, drawn: str, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        after = f"{memory.decode()}{drawn}; ".encode()
        body = {
            "feed": self.terms.feed,
            "charges": charges_of(plan),
            "digest": after.decode(),
            "generation": plan.generation,
            "sequence": number,
        }
        body["window"] = {"start": utc_text(plan.window.start), "end": utc_text(plan.window.end)}
        parts = [(HEXAGON_SPEED, "cell"), (WINDOW, "marker")]
        name = self.terms.feed
        return [window_message(topic, name, plan.window, part, name, body) for topic, part in parts], after


def charges_of(plan: Plan) -> dict[int, int]:
    """What each user pays for a window."""
    users, charges = plan.charged_users()
    return dict(zip(users.tolist(), charges.tolist(), strict=True))


async def _at_once(producer: SteppedPublisher) -> None:
    """The start of a producer; nothing happens in it that the protocol rests on."""


@contextmanager
def seam(redis: SteppedRedis) -> Iterator[None]:
    """The shipped closing process with the scheduler's servers; everything else is as it is shipped."""
    servers = {"redis_client": lambda _: redis, "make_producer": lambda _: SteppedPublisher(), "start_client": _at_once}
    servers |= {"KafkaPublisher": lambda *_: SteppedPublisher(), "statistics_of": PlainStatistics}
    with (
        patch.multiple(close_process, **servers),
        patch.object(ledger_check, "read_markers", lambda *_: Request("markers")),
    ):
        yield


@dataclass(eq=False)
class Step:
    """A worker that closes ``slot``, between two requests: its next ``request``, or the ``report`` with which it
    ended."""

    number: int
    slot: int
    before: tuple[Step, Any, int] | None = None
    request: Request | None = None
    report: CloseReport | None = None
    running: Coroutine[Any, Any, Any] | None = None
    draws: frozenset[str] = frozenset()
    """Names of the draws that it knows of."""
    following: dict[Any, tuple[Step, Plan | None]] = field(default_factory=dict)


class Steps:
    """The tree of all that one attempt to close a window may go through. Every attempt is a process of its own, which
    has not seen any close marker. (One that has seen some refuses to release more often, never less.)
    """

    def __init__(self, configs: Mapping[int, Config]) -> None:
        """``configs``: of the feed of each window."""
        self._configs = configs
        self._all: list[Step] = []
        self._roots: dict[int, Step] = {}
        self._same: dict[Any, Step] = {}

    def __getitem__(self, number: int) -> Step:
        return self._all[number]

    def root(self, slot: int) -> Step:
        """The beginning of an attempt to close ``slot``."""
        if slot not in self._roots:
            step = self._roots[slot] = self._new(slot, None)
            step.running = self._begin(slot)
            self._resume(step, None)
        return self._roots[slot]

    def answered(self, step: Step, answer: Any, name: str, fresh: Callable[[], int]) -> tuple[Step, Plan | None]:
        """The step after ``step`` got ``answer``, which ``name`` identifies, and the plan that was drawn on the way, as
        draw number ``fresh()``.
        """
        if name in step.following:
            return step.following[name]
        number = fresh()
        if (name, number) not in step.following:
            after = self._new(step.slot, (step, answer, number))
            after.running, step.running = step.running or self._again(step), None
            PlainStatistics.fresh = number
            drew = self._resume(after, answer)
            step.following[name if drew is None else (name, number)] = self._merged(after), drew
            if drew is None:
                return step.following[name]
        return step.following[name, number]

    def _merged(self, step: Step) -> Step:
        """``step``, or one that goes on like it."""
        if step.report is not None:
            return step
        state = step.request, continuation(step.running)
        same = self._same.setdefault(state, step)
        if same is step:
            step.draws = frozenset(DRAW.findall(repr(state)))
        else:
            self._all.pop()
        return same

    def _begin(self, slot: int) -> Coroutine[Any, Any, Any]:
        close_process.begin_anew()
        return close_process.close_windows(self._configs[slot], [slot])

    def _new(self, slot: int, before: tuple[Step, Any, int] | None) -> Step:
        self._all.append(Step(len(self._all), slot, before))
        return self._all[-1]

    def _again(self, step: Step) -> Coroutine[Any, Any, Any]:
        answers, at = [], step
        while at.before is not None:
            at, *answer = at.before
            answers.append(answer)
        coroutine = self._begin(step.slot)
        coroutine.send(None)
        for answer, PlainStatistics.fresh in reversed(answers):
            _send(coroutine, answer)
        return coroutine

    def _resume(self, step: Step, answer: Any) -> Plan | None:
        PlainStatistics.drew = None
        try:
            step.request = _send(step.running, answer)
        except StopIteration as end:
            (step.report,) = end.value
        return PlainStatistics.drew


def continuation(coroutine: Any) -> Any:
    """What a suspended coroutine will go on with: where it and those that it waits for stand, and their locals.

    What an expression has computed before it waits is not seen; in the protocol, that follows from the locals.
    """
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        own = frame.f_globals["__name__"].startswith(("stream.", "tests."))
        frames.append((frame.f_code, frame.f_lasti, own and _value(dict(frame.f_locals))))
        coroutine = coroutine.cr_await
    return tuple(frames)


_STATELESS = (Redis, Pipeline, Config, Noise, CoroutineType, FeedKeys, ReleaseProtocol, ReleaseStore, RowStore)
"""Parts that are the same in every worker, with those of this module."""


_PLAIN = (type(None), int, str, bytes, float, Message)
"""Types of most values. One call asks for all of them, where ``match`` would ask for one after the other."""


def _value(value: Any) -> Any:
    """``value`` as something hashable that is equal for equal values, whoever made them."""
    if isinstance(value, _PLAIN):
        return value
    match value:
        case list() | tuple() | set() | frozenset():
            return tuple(map(_value, value))
        case dict():
            return tuple((str(name), _value(part)) for name, part in value.items() if name != "started")
        case np.ndarray() | bytearray():
            return bytes(value)
        case msgspec.Struct() | slice() | np.dtype() | BaseException():
            return name_of(value)
        case PlainStatistics() | SteppedPublisher():
            return type(value)
        case _ if callable(value) or isinstance(value, _STATELESS):
            return type(value).__name__
        case _ if type(value).__module__.startswith(("stream.", "types")):
            return type(value), _value(vars(value))
    raise TypeError(f"a coroutine has a {type(value).__name__}, and when two of them are equal is not known")


def name_of(answer: Any) -> str:
    """What tells an answer from all others. Of Redis's errors, ``repr`` says the kind only."""
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, BaseException) else repr(answer)


def _send(coroutine: Any, answer: Any) -> Any:
    return coroutine.throw(answer) if isinstance(answer, Exception) else coroutine.send(answer)
