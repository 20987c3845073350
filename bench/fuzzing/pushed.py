"""What vehicles push by HTTP: bodies, and bytes on connections to the port of ``hexveil push``."""

from __future__ import annotations

import json
import random
import time

from aiohttp import web

from bench.fuzzing.hunting import Hunt, LoopTarget
from bench.fuzzing.messages import feed_config, sound_event
from bench.fuzzing.mutation import Mutator
from bench.fuzzing.requests import Requests, request
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.messages import Messages
from stream.sources.pushed import (
    MOST_BYTES,
    PATH,
    PushAllowance,
    PushError,
    PushIntake,
    application,
    read_body,
    runner_of,
)

_TOKEN = "a token of the fuzzer"
_IDLE = 260
"""Connections that ask for nothing: more than the port holds of one address."""


class _Judging(PushIntake):
    """Keeps the events of a request instead of sending them."""

    passed: Messages

    async def _delivered(self, messages: Messages) -> None:
        self.passed = messages


class PushedBodies(LoopTarget):
    """Bodies of sound and mutated events, as an array or as lines, and bodies whose bytes are mutated as a whole."""

    name = "push"
    contract = "a PushError, or events of which the service counts every one"

    def __init__(self) -> None:
        self._config = feed_config("canonical", lateness="event-time")
        self._decoder = Decoder(self._config, bytes(KEY_BYTES), arrays=False)
        self._intake = _Judging(self._config)

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Sixty bodies."""
        mutator = Mutator(rng)
        for _ in range(60):
            events = [json.dumps(sound_event("canonical", rng)).encode() for _ in range(rng.randrange(1, 8))]
            if rng.random() < 0.7:
                at = rng.randrange(len(events))
                events[at] = mutator.json(json.loads(events[at]))
            body = b"[" + b",".join(events) + b"]" if rng.random() < 0.5 else b"\n".join(events)
            hunt.attempt(mutator.octets(body) if rng.random() < 0.4 else body, self._check)
        hunt.attempt(b"[" + b"0," * (MOST_BYTES // 2 - 1) + b"0]", self._check)

    def _check(self, body: bytes) -> None:
        try:
            values = read_body(body)
            answer = self._loop.run_until_complete(self._intake.take(values))
        except PushError:
            return
        passed = self._intake.passed
        assert answer["accepted"] == len(passed.values) == len(passed.keys) == len(passed.due) == len(values)
        assert not len(self._decoder.decode(passed.values, time.time_ns() // 1000).refused), (
            "an accepted event is refused"
        )


def _post(body: bytes, more: str = "") -> bytes:
    """A request with the token."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {_TOKEN}\r\nContent-Length: "
        f"{len(body)}\r\n{more}\r\n"
    )
    return head.encode() + body


def _event(rng: random.Random) -> bytes:
    return json.dumps(sound_event("canonical", rng)).encode()


class PushPort(Requests):
    """Odd requests, and sound ones with mutated bodies, to a port of its own bounds. The broker takes everything."""

    name = "http-push"
    paths = (PATH, "/", "/{}", f"{PATH}/{{}}", f"{PATH}?{{}}")
    idle = _IDLE
    sound, answer = _post(_event(random.Random(0)), "Connection: close\r\n"), b"HTTP/1.1 202"

    def request(self, rng: random.Random) -> bytes:
        """One request; of those with the token the body alone is mutated."""
        return request(rng, self.paths) if rng.random() < 0.5 else _post(Mutator(rng).octets(_event(rng)))

    async def application(self) -> web.Application:
        """The application of ``hexveil push``; what is refused never empties its allowance."""
        intake = _Judging(feed_config("canonical", lateness="event-time"))
        return application(intake, _TOKEN, PushAllowance(1e9))

    def runner(self, application: web.Application) -> web.AppRunner:
        """Its own."""
        return runner_of(application)
