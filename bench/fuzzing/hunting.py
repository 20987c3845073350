"""Tries inputs on one reader, with a limit of processor time for each, and keeps what breaks its contract,
minimised."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from stream.local.kafka import REPO_ROOT

T = TypeVar("T")
Input = TypeVar("Input", bytes, list[Any])

MAX_SECONDS = 5.0
"""Processor time that one input, or one batch of a few dozen, may take."""
MAX_GROWTH_MB = 96
"""What the resident memory of a target may gain between its tenth and its last round, the 64 MB of answers that serve
keeps included."""
MAX_PEAK_MB = 1024
"""What a target may map beyond what it had at its start: an input that needs more fails with :class:`MemoryError`."""
_WARM_ROUNDS = 10
_SHRINKS = 300
_SHOWN = 2_000
_MOST_FINDS = 20


class TooSlowError(KeyboardInterrupt):
    """An input took more than :data:`MAX_SECONDS`. No event loop and no ``except Exception`` swallows it."""


def _too_slow(_: int, frame: FrameType | None) -> None:
    raise TooSlowError


@dataclass(frozen=True)
class Find:
    """An input that broke a contract: the error, the line of ours in which it arose, the input minimised, as text."""

    error: str
    where: str
    data: str
    round: int


class Hunt:
    """The inputs of one target that were tried, and what was found."""

    def __init__(self) -> None:
        self.inputs = 0
        self.bytes = 0
        self.round = 0
        self.finds: dict[tuple[str, str], Find] = {}

    def attempt(self, data: Input, check: Callable[[Input], T], mutated: Sequence[object] | None = None) -> T | None:
        """``check(data)``, or None if it raised anything: then ``data`` is a find.

        ``mutated``: the parts of ``data`` that were mutated, which alone are counted; None if ``data`` as a whole is
        one.
        """
        self.inputs += 1 if mutated is None else len(mutated)
        self.bytes += _size(data) if mutated is None else sum(map(_size, mutated))
        try:
            return _timed(data, check)
        except BaseException as error:  # a reader must not even end the process
            if isinstance(error, KeyboardInterrupt) and not isinstance(error, TooSlowError):
                raise
            self._note(data, check, error)
            return None

    def _note(self, data: Input, check: Callable[[Input], T], error: BaseException) -> None:
        key = _place(error)
        if key in self.finds or len(self.finds) >= _MOST_FINDS:
            return
        small = _minimised(data, lambda less: _place_of(less, check) == key)
        self.finds[key] = Find(f"{key[0]}: {error}"[:300], key[1], repr(small)[:_SHOWN], self.round)


def _size(data: object) -> int:
    """Bytes in an input, and in the parts of one."""
    if isinstance(data, bytes | str):
        return len(data)
    return sum(map(_size, data)) if isinstance(data, list | tuple) else 0


def _timed(data: Input, check: Callable[[Input], T]) -> T:
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        return check(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place_of(data: Input, check: Callable[[Input], T]) -> tuple[str, str] | None:
    try:
        _timed(data, check)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, TooSlowError):
            raise
        return _place(error)
    return None


def _place(error: BaseException) -> tuple[str, str]:
    """Kind of the error, and the innermost line of our own that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    root = str(REPO_ROOT) + "/"
    own = [
        frame for frame in frames if frame.filename.startswith(root) and "/bench/fuzzing/hunting" not in frame.filename
    ]
    last = own[-1] if own else None
    if isinstance(error, TooSlowError | RecursionError | MemoryError):
        last = own[0] if own else None  # such an error may arise anywhere below
    return type(error).__name__, "" if last is None else f"{last.filename.removeprefix(root)}:{last.lineno} {last.name}"


def _minimised(data: Input, fails: Callable[[Input], bool]) -> Input:
    """A smaller input that still fails, by leaving out ever smaller parts; at most so many tries and seconds."""
    tries, until, size = 0, time.monotonic() + 60, max(len(data) // 2, 1)
    while size and tries < _SHRINKS and time.monotonic() < until:
        at, before = 0, len(data)
        while at < len(data) and tries < _SHRINKS and time.monotonic() < until:
            less, tries = data[:at] + data[at + size :], tries + 1
            if len(less) < len(data) and fails(less):
                data = less
            else:
                at += size
        if len(data) == before:
            size //= 2
    return data


class Target(ABC):
    """One reader. ``contract`` says what it may do with bytes. It is used as a context, in which its servers run."""

    name: str
    contract: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """End what :meth:`__enter__` started; nothing, if it started nothing."""
        return

    @abstractmethod
    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Try a few dozen to a few hundred inputs."""


class FolderTarget(Target):
    """A target with a temporary ``folder`` for the files that its reader reads."""

    folder: Path

    def __enter__(self) -> Self:
        self._temporary = TemporaryDirectory(prefix="hexveil-fuzz-")
        self.folder = Path(self._temporary.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._temporary.cleanup()


class LoopTarget(Target):
    """A target with an event loop of its own."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._loop.close()


def resident_mb() -> float:
    """Resident memory of this process after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def hunt(
    target: Target,
    seed: int,
    seconds: float,
    rounds: int | None = None,
    tell: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run rounds for ``seconds``, or ``rounds`` of them; the report says how many inputs were tried and what was found.

    Round n of a seed always tries the same inputs. ``tell`` is called with an interim report about every ten seconds.
    """
    tried, begun = Hunt(), time.monotonic()
    before = signal.signal(signal.SIGPROF, _too_slow)
    warm = last_report = 0.0
    try:
        with target:
            while tried.round < rounds if rounds is not None else time.monotonic() - begun < seconds:
                target.round(tried, random.Random(f"{seed}/{target.name}/{tried.round}"))
                tried.round += 1
                if tried.round == _WARM_ROUNDS:
                    warm = resident_mb()
                if time.monotonic() - last_report > 10:
                    last_report = time.monotonic()
                    tell(_report(target, tried, seed, begun, warm))
            return _report(target, tried, seed, begun, warm)
    finally:
        signal.signal(signal.SIGPROF, before)


def _report(target: Target, tried: Hunt, seed: int, begun: float, warm: float) -> dict[str, Any]:
    growth = resident_mb() - warm if tried.round > _WARM_ROUNDS else 0.0
    return {
        "target": target.name,
        "seed": seed,
        "rounds": tried.round,
        "inputs": tried.inputs,
        "bytes": tried.bytes,
        "seconds": round(time.monotonic() - begun, 1),
        "growth_mb": round(growth, 1),
        "grows": growth > MAX_GROWTH_MB,
        "finds": [vars(find) for find in tried.finds.values()],
    }
