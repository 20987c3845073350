"""Two workers, one Redis, one output topic: the moves that are possible in a state, and what no move may break."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stream.config import Config
from stream.ingestion.pseudonyms import load_user_key
from stream.messages.message import WINDOW, Message, decode_outbox
from stream.protocol.ledger_check import Known, LedgerCheck
from stream.protocol.markers import Marker, Published, Ranked
from stream.statistics.plan import Plan
from stream.storage.client import text_of
from stream.storage.keys import FeedKeys, PartKeys
from stream.storage.ledger import Ledger
from stream.storage.row_store import ROW, RowStore
from tests.model.server import StateServer
from tests.model.stepping import DRAW, Request, Step, SteppedRedis, Steps, charges_of, name_of, seam
from tests.support.builders import SLOT, bus_config

Part = tuple[int, bool, bytes]
"""What was published of a window: its start, whether it is the close marker, the bytes."""
IDLE = -1
"""A worker that does nothing."""
PARTITION = "bus/0"
NEVER, MAY, WAS = -3, -2, -1
"""Redis is never set back; it may be, to a state that is yet to come; it was."""


class Variant(NamedTuple):
    """What is explored: ``windows``, ``faults``, whether Redis is ``set_back``, and whether it then
    ``forgets_unpublished`` commits as well. ``feeds``: each has one of the windows; they share a ledger, or have
    ledgers ``apart``. ``sees_others``: whether a worker is shown the close markers of the other feed.
    """

    windows: int = 1
    faults: int = 0
    set_back: bool = False
    forgets_unpublished: bool = False
    feeds: int = 1
    apart: bool = False
    sees_others: bool = True


class Body(Marker, frozen=True, kw_only=True):
    """A message of the model: a close marker that says what its draw cost."""

    feed: str
    charges: dict[str, int]


NOTHING = Published(topic="the only one")
"""What an empty topic shows."""


class State(NamedTuple):
    """``redis``, ``topic``: their contents. ``workers``: number of a step each, ascending. ``faults``: how many more
    there may be. ``snapshot``: the state to which Redis will be set back, or :data:`NEVER`, :data:`MAY` or :data:`WAS`.
    """

    redis: int
    topic: frozenset[Part]
    workers: tuple[int, ...]
    faults: int
    snapshot: int


class Move(NamedTuple):
    """A transition. ``worker``: its place in ``State.workers``; None for Redis. ``fault``: nobody wants it.
    ``refused``: the worker gave up because the ledger cannot prove what was spent. ``broken``: the rule that the move
    breaks.
    """

    after: State
    worker: int | None
    text: str
    fault: bool = False
    refused: bool = False
    broken: str | None = None


class Outcome(NamedTuple):
    """What may become of a request: its text, the answer, Redis and topic after it, the answer's name, whether it is a
    fault."""

    text: str
    answer: Any
    redis: int
    topic: frozenset[Part]
    name: str
    fault: bool


def world_of(server: StateServer, folder: Path, variant: Variant) -> World:
    """What ``variant`` asks for; ``folder`` takes the files of its configuration."""
    settings = {"privacy.epsilon": 0.4 if variant.windows == 1 else 0.6, "privacy.budget": 1.0}
    if variant.feeds == 1:
        return World(server, [bus_config(folder, **settings)] * variant.windows, variant)
    shared = {} if variant.apart else {"ledger.name": "city"}
    return World(
        server, [bus_config(folder, **settings, **shared, **{"feed.name": name}) for name in ("bus", "tram")], variant
    )


@cache
def body_of(value: bytes) -> Body:
    return msgspec.json.decode(value, type=Body)


@cache
def parts_of(messages: tuple[Message, ...]) -> frozenset[Part]:
    slots = re.compile(r" of (\d+); $")
    return frozenset(
        (int(slots.findall(body_of(message.value).digest)[0]), message.topic == WINDOW, message.value)
        for message in messages
    )


class World:
    """Everything that may happen to the windows of one or two feeds with one user, who can pay for one of two."""

    def __init__(self, server: StateServer, configs: list[Config], variant: Variant) -> None:
        """``configs``: of the feed of each window."""
        self.server, self.variant, self.config = server, variant, configs[0]
        self.slots = tuple(SLOT + 3600 * window for window in range(variant.windows))
        self.configs = dict(zip(self.slots, configs, strict=True))
        self.keys = {slot: FeedKeys.of(config) for slot, config in self.configs.items()}
        self.constant = {
            key
            for keys in self.keys.values()
            for key in (
                *(keys.generation, keys.birth, keys.retired, keys.policy, keys.user_identity, keys.sealed),
                *(keys.feeds, keys.budgets, keys.user_field, keys.marker_topic, keys.user_key),
                *(keys.opened, keys.partitions, keys.gone),
                *(PartKeys(keys, PARTITION).progress, PartKeys(keys, PARTITION).sealed),
            )
        }
        """Keys that closing never changes once the feed began, so it does not matter when they are read."""
        self.steps, self.topics = Steps(self.configs), dict[frozenset[Part], frozenset[Part]]()
        self.redis = SteppedRedis(server.register)
        self.seam = seam(self.redis)
        self.judge_change, self.judge_topic = cache(self._judge_change), cache(self._judge_topic)

    def initial(self) -> State:
        """Every window is sealed and has a row; the ledger is born; nothing is planned."""
        redis, state, preparing = self.redis, self.server.empty, list[Coroutine[Any, Any, Any]]()
        for number, (slot, config) in enumerate(self.configs.items()):
            load_user_key(config.privacy.user_key_file)  # as a worker that starts does
            ledger, rows = Ledger.of(redis, config), RowStore.of(redis, config)
            preparing += [ledger.start_generation(birth=0), LedgerCheck(config, redis, ledger, Known()).verify()]
            row = np.zeros(1, dtype=ROW)
            row["user"], row["time"] = 1, slot * 1_000_000
            preparing += [rows.append(PARTITION, number, number + 1, row, np.array([number]), np.array([slot]))]
            preparing += [rows.seal(slot)]
        for coroutine in preparing:
            answer: Any = None
            while True:
                try:
                    request = coroutine.send(answer)
                except StopIteration:
                    break
                state, answer = self._executed(request, state)[:2] if request.kind == "redis" else (state, NOTHING)
        return State(state, frozenset(), (IDLE, IDLE), self.variant.faults, MAY if self.variant.set_back else NEVER)

    # Moves.

    def moves(self, state: State) -> Iterator[Move]:
        """Every transition from ``state``.

        Requests for keys that never change are no moves of their own: they commute with everything that anybody else
        does. A crash is explored right after a request with an effect only: between two effects, it makes no difference
        when a worker dies. Workers are alike, so a state does not say which is which.
        """
        if state.snapshot >= 0 and state.snapshot != state.redis and self._recognisable(state):
            yield Move(state._replace(redis=state.snapshot, snapshot=WAS), None, "Redis is set back", fault=True)
        for place, worker in enumerate(state.workers):
            if place and worker == state.workers[0]:
                continue
            if worker != IDLE:
                yield from self._of_step(state, place, self.steps[worker])
                continue
            for slot in self._open(state.redis):
                yield self._moved(
                    state, place, self.steps.root(slot), f"begins to close {self._named(slot)}", False, None
                )

    @cache  # noqa: B019
    def _is_local(self, number: int) -> bool:
        commands = self.steps[number].request.commands
        keys = [str(part) for command in commands for part in command if str(part).startswith("hv:")]
        return bool(keys) and self.constant.issuperset(keys)

    def _recognisable(self, state: State) -> bool:
        """Whether everything committed that Redis would forget was published with its close marker. The rest is a known
        limit."""
        lost = self._committed(state.redis).keys() - self._committed(state.snapshot).keys()
        return self.variant.forgets_unpublished or lost <= {slot for slot, marker, _ in state.topic if marker}

    def _of_step(self, state: State, place: int, step: Step) -> Iterator[Move]:
        for outcome in self._outcomes(step.number, state.redis, state.topic):
            if outcome.fault and not state.faults:
                continue
            served = state._replace(redis=outcome.redis, topic=outcome.topic, faults=state.faults - outcome.fault)
            answer = outcome.answer, outcome.name
            following, drew = self.steps.answered(step, *answer, lambda: self._fresh(state, step))
            broken = self._judge(state, served, drew)
            text = outcome.text + (f", draws “{max(following.draws - step.draws)}”" if drew else "")
            moves = [self._moved(served, place, following, text, outcome.fault, broken)]
            if served.faults and (outcome.redis, outcome.topic) != (state.redis, state.topic):
                crashed = self._with(served, place, IDLE)._replace(faults=served.faults - 1)
                moves.append(Move(crashed, place, f"{outcome.text}, and crashes", fault=True, broken=broken))
            for move in moves:
                yield move
                if state.snapshot == MAY and outcome.redis != state.redis:
                    yield move._replace(
                        after=move.after._replace(snapshot=state.redis), text=f"{move.text}, which will be lost"
                    )

    @cache  # noqa: B019
    def _outcomes(self, number: int, redis: int, topic: frozenset[Part]) -> list[Outcome]:
        """What may become of the request of step ``number``."""
        request, feed = self.steps[number].request, self.configs[self.steps[number].slot].feed.name
        text = self._text(request)
        match request.kind:
            case "redis":
                after, answer, replayed = self._executed(request, redis)
                outcomes = [(text, answer, after, topic)]
                again, second, _ = self._executed(request, after)
                if after != redis and (again, second) != (after, answer):
                    outcomes.append((f"{text}, twice, because the first answer is lost", second, again, topic))
                if replayed != after:
                    outcomes.append((f"{text}, and the end of the log is replayed", answer, replayed, topic))
            case "publish":
                published = topic | parts_of(request.messages)
                outcomes = [(text, None, redis, self.topics.setdefault(published, published))]
                if published != topic:
                    outcomes.append((f"{text}, which the broker loses", None, redis, topic))
            case "markers":
                others = self.variant.sees_others and not self.variant.apart
                read = [body_of(value) for _, marker, value in topic if marker]
                read = sorted((m for m in read if others or m.feed == feed), key=lambda marker: marker.sequence)
                newest = {marker.feed: Ranked((marker.sequence, 0, 0, 0), marker) for marker in read}
                generations = frozenset(marker.generation for marker in read)
                known = replace(NOTHING, newest=newest, generations=generations)
                outcomes = [(text, known, redis, topic)]
            case "confirm":
                outcomes = [(text, parts_of(request.messages) <= topic, redis, topic)]
        return [Outcome(*outcome, name_of(outcome[1]), fault=number > 0) for number, outcome in enumerate(outcomes)]

    def _executed(self, request: Request, state: int) -> tuple[int, Any, int]:
        after, answers, replayed = self.server.execute(state, request.commands)
        error = next((answer for answer in answers if isinstance(answer, Exception)), None)
        return after, error or (answers[0] if request.single else answers), replayed

    def _moved(self, state: State, place: int, step: Step, text: str, fault: bool, broken: str | None) -> Move:
        step = self._ahead(step.number, state.redis)
        report, slot = step.report, step.slot
        if report is None:
            return Move(self._with(state, place, step.number), place, text, fault, broken=broken)
        idle = self._with(state, place, IDLE)
        if report.failure is None:
            return Move(idle, place, f"{text}; has released {self._named(slot)}", fault, broken=broken)
        text, refused = f"{text}; gives up: {report.reason}", report.failure == "ledger"
        if report.failure not in ("ledger", "publish", "turn") or (refused and state.snapshot != WAS):
            broken = broken or f"a worker gives up although nothing was lost: {report.reason}"
        return Move(idle, place, text, fault, refused, broken)

    @cache  # noqa: B019
    def _ahead(self, number: int, redis: int) -> Step:
        """The first step, from that of ``number`` on, that asks for more than keys that never change, or that has
        ended."""
        step = self.steps[number]
        while step.report is None and self._is_local(step.number):
            answer = self._executed(step.request, redis)[1]
            step, _ = self.steps.answered(step, answer, name_of(answer), lambda: 0)
        return step

    def _with(self, state: State, place: int, worker: int) -> State:
        return state._replace(workers=tuple(sorted((worker, state.workers[1 - place]))))

    def _fresh(self, state: State, step: Step) -> int:
        """The least number of a draw of which nobody knows any more, or ever did."""
        known = (
            set(step.draws) | self._draws(state.redis) | (self._draws(state.snapshot) if state.snapshot >= 0 else set())
        )
        known |= {draw for _, _, value in state.topic for draw in DRAW.findall(body_of(value).digest)}
        known |= {draw for worker in state.workers if worker != IDLE for draw in self.steps[worker].draws}
        return next(n for n in range(1, len(known) + 2) if f"draw {n} of {step.slot}" not in known)

    # Redis.

    @cache  # noqa: B019
    def _draws(self, redis: int) -> set[str]:
        return set(DRAW.findall(repr(self.server.content(redis))))

    @cache  # noqa: B019
    def _open(self, redis: int) -> tuple[int, ...]:
        """The windows that have rows."""
        waiting = (
            self.server.content(redis).get(PartKeys(keys, PARTITION).slots.encode(), {})
            for keys in dict.fromkeys(self.keys.values())
        )
        return tuple(int(slot) for slots in waiting for slot in slots)

    @cache  # noqa: B019
    def _outboxes(self, redis: int) -> dict[int, Body]:
        """The close markers of committed windows."""
        content = self.server.content(redis)
        boxes = {slot: content.get(self.keys[slot].outbox(slot).encode()) for slot in self.slots}
        return {slot: body_of(decode_outbox(box)[-1].value) for slot, box in boxes.items() if box is not None}

    @cache  # noqa: B019
    def _committed(self, redis: int) -> dict[int, str]:
        """The digest of each window that is committed or released."""
        content = self.server.content(redis)
        closed = [content.get(keys.closed.encode(), {}) for keys in self.keys.values()]
        digests = {int(slot): msgspec.json.decode(record)["digest"] for of in closed for slot, record in of.items()}
        return digests | {slot: marker.digest for slot, marker in self._outboxes(redis).items()}

    @cache  # noqa: B019
    def _passed(self, redis: int) -> frozenset[int]:
        """Windows that are not committed, and older than the latest of their feed that was planned."""
        content, committed = self.server.content(redis), self._committed(redis)
        latest = {slot: int(content.get(keys.planned.encode(), 0)) for slot, keys in self.keys.items()}
        return frozenset(slot for slot in self.slots if slot < latest[slot] and slot not in committed)

    @cache  # noqa: B019
    def _planned(self, redis: int) -> frozenset[int]:
        """Windows with a stored plan, or that were committed."""
        content = self.server.content(redis)
        stored = (slot for slot, keys in self.keys.items() if keys.plan(slot).encode() in content)
        return frozenset(stored) | self._committed(redis).keys()

    def _ledger(self, redis: int) -> Counter[int]:
        period = self.config.slotting.period_of(self.slots[0]).key
        content, ledgers = self.server.content(redis), {keys.ledger(period).encode() for keys in self.keys.values()}
        spent = ({int(user): int(units) for user, units in content.get(key, {}).items()} for key in ledgers)
        return sum(map(Counter, spent), Counter())

    def _paid(self, redis: int, slot: int) -> Counter[int]:
        paid = self.server.content(redis).get(self.keys[slot].charged(slot).encode(), {})
        return Counter({int(user): int(units) for user, units in paid.items() if user != b"plan"})

    # Rules. Each says what it breaks.

    def settled(self, state: State) -> bool:
        """Every window was published with its close marker, and none waits to be closed, but for those whose turn has
        passed."""
        passed, published = self._passed(state.redis), {slot for slot, marker, _ in state.topic if marker}
        return passed.issuperset(self._open(state.redis)) and published | passed == set(self.slots)

    def _judge(self, before: State, after: State, drew: Plan | None) -> str | None:
        broken = None
        if before.redis != after.redis:
            broken = self.judge_change(before.redis, after.redis)
        if before.topic != after.topic:
            broken = broken or self.judge_topic(before.topic, after.topic, after.redis, before.snapshot != WAS)
        if drew is not None:
            covered = self._paid(after.redis, drew.window.start) & self._ledger(after.redis)
            if any(covered[user] < charge for user, charge in charges_of(drew).items()):
                broken = broken or f"noise of {self._named(drew.window.start)} is drawn and was not charged"
        return broken

    def _judge_change(self, before: int, after: int) -> str | None:
        contents = [self.server.content(redis) for redis in (before, after)]
        if any(contents[0].get(key.encode()) != contents[1].get(key.encode()) for key in self.constant):
            return "a key changed that the exploration takes for constant"
        granted, ledger = self._ledger(before), self._ledger(after)
        if max(ledger.values(), default=0) > self.config.privacy.ledger_budget:
            return f"the ledger grants {max(ledger.values())}, the budget is {self.config.privacy.ledger_budget}"
        for slot in self._planned(after) - self._planned(before):
            beside = {other for other in self._planned(before) if self.keys[other] == self.keys[slot]}
            if any(other > slot for other in beside) or not self._committed(before).keys() >= beside:
                return f"{self._named(slot)} is planned after a later one, or before an earlier one is committed"
        paid = [sum((self._paid(redis, slot) for slot in self.slots), Counter()) for redis in (before, after)]
        if ledger != granted and ledger - granted != paid[1] - paid[0]:
            return f"a charge of {dict(paid[1] - paid[0])} changes the ledger by {dict(ledger - granted)}"
        outboxes = [self._outboxes(redis) for redis in (before, after)]
        committed = [slot for slot, marker in outboxes[1].items() if outboxes[0].get(slot) != marker]
        for slot in committed:
            if slot in self._committed(before):
                return f"{self._named(slot)} is committed a second time"
            charges, covered = outboxes[1][slot].charges, self._paid(after, slot) & ledger
            if any(covered[int(user)] < charge for user, charge in charges.items()):
                return f"{self._named(slot)} is committed and was not charged"
        counters = {keys.commits.encode() for keys in self.keys.values()}
        numbers = [sum(int(content.get(key, 0)) for key in counters) for content in contents]
        if numbers[1] - numbers[0] != len(committed):
            return f"{len(committed)} windows are committed, and the numbers of commits before and after are {numbers}"
        return None

    def _judge_topic(self, before: frozenset[Part], after: frozenset[Part], redis: int, intact: bool) -> str | None:
        """``intact``: Redis was not set back, so its ledger covers everything that was published."""
        for slot, marker, value in after - before:
            if any((slot, marker) == part[:2] for part in before):
                return f"{self._named(slot)} is published a second time, with other bytes"
            if self._committed(redis).get(slot) != body_of(value).digest and intact:
                return f"{self._named(slot)} is published and was not committed"
        releases = {(slot, body_of(value).digest): body_of(value).charges for slot, _, value in after}
        cost = sum((Counter(charges) for charges in releases.values()), Counter())
        if max(cost.values(), default=0) > self.config.privacy.ledger_budget:
            return f"what is published cost a user {max(cost.values())}, more than {self.config.privacy.ledger_budget}"
        if intact and any(self._ledger(redis)[int(user)] < units for user, units in cost.items()):
            return "what is published costs more than the ledger says"
        marked = [(slot, body_of(value)) for slot, marker, value in after if marker]
        numbers = sorted((body.feed, body.sequence) for _, body in marked)
        if [(feed, n) for feed, _, n in sorted((body.feed, slot, body.sequence) for slot, body in marked)] != numbers:
            return f"close markers carry the numbers {numbers} in another order than that of their windows"
        if len(set(numbers)) < len(numbers) or any(n > len(self.slots) // self.variant.feeds for _, n in numbers):
            return f"close markers carry the numbers {numbers}"
        return None

    # Texts.

    def _named(self, slot: int) -> str:
        return f"window {self.slots.index(slot) + 1}"

    def _text(self, request: Request) -> str:
        if request.kind != "redis":
            marker = request.kind == "publish" and request.messages[-1].topic == WINDOW
            return {
                "publish": f"publishes {'the close marker' if marker else 'a release'}",
                "markers": "reads the close markers",
            }.get(request.kind, "reads its messages back")
        return "; ".join(self._text_of(*map(str, command)) for command in request.commands)

    def _text_of(self, name: str, *arguments: str) -> str:
        keys = [part.rpartition("}:")[2] for part in arguments if part.startswith("hv:")]
        if name == "EVALSHA":
            named = {"charge": "charges", "commit": "commits"}
            digests = {self.redis.register_script(text_of(script)).sha: said for script, said in named.items()}
            return digests.get(arguments[0], name)
        return " ".join([name, *keys])
