"""Where a process spends its processor time, by part of the program, while it runs as always.

A timer of processor time interrupts the process every millisecond; the time since the last interrupt goes to the part
that runs then. Python answers an interrupt only once a call into C is over, so a call is charged whole to the part that
made it.
"""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Self

_INTERVAL = 0.001


class ProcessorTime:
    """Context that counts processor ``seconds`` by part of the main thread.

    ``parts``: name of each part, and the pattern of its code as "file:function". The innermost frame that fits a
    pattern decides, of two patterns the first one. What fits none is "other".
    """

    def __init__(self, parts: Mapping[str, str]) -> None:
        self._parts = {part: re.compile(pattern) for part, pattern in parts.items()}
        self._last = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __enter__(self) -> Self:
        self._last = time.process_time()
        signal.signal(signal.SIGPROF, self._count)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL, _INTERVAL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._count(signal.SIGPROF, None)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def _count(self, number: int, frame: FrameType | None) -> None:
        now = time.process_time()
        self.seconds[self._part(frame)] += now - self._last
        self._last = now

    def _part(self, frame: FrameType | None) -> str:
        while frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
            for part, pattern in self._parts.items():
                if pattern.search(place):
                    return part
            frame = frame.f_back
        return "other"
