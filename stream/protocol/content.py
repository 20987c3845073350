"""Errors of a window's content: an error in a pure step must not stop the windows that follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisError

from dpcore.noise import Noise
from stream.messages.message import Message
from stream.protocol.parts import Statistics
from stream.statistics.plan import Allowance, Due, Plan, PlanError
from stream.statistics.window_release import Drawn
from stream.statistics.window_rows import WindowRows
from stream.storage.sealed_rows import NotSealedError
from stream.terms import Terms
from stream.windows import Window, utc_text


class ContentError(RuntimeError):
    """A step that computes on the rows of a window failed, and would fail again with the same rows."""

    def __init__(self, slot: int, step: str, cause: BaseException) -> None:
        super().__init__(
            f"window {utc_text(slot)} cannot be closed: {step} failed with {type(cause).__name__}: {cause}. "
            "See docs/runbooks.md#windowsetaside"
        )


@contextmanager
def content_of(slot: int, step: str) -> Iterator[None]:
    """Turn errors of the block into :class:`ContentError`, except if rows and plan do not match, or Redis does not
    answer or was set back.
    """
    try:
        yield
    except (ContentError, NotSealedError, PlanError, RedisError):
        raise
    except Exception as error:
        raise ContentError(slot, step, error) from error


@dataclass(frozen=True)
class GuardedStatistics:
    """The same statistics; each of their errors is a :class:`ContentError` that names the step."""

    statistics: Statistics

    @property
    def terms(self) -> Terms:
        """As :class:`Statistics`."""
        return self.statistics.terms

    @property
    def may_withhold(self) -> bool:
        """As :class:`Statistics`."""
        return self.statistics.may_withhold

    def arrange(self, rows: npt.NDArray[np.void], window: Window) -> WindowRows:
        """As :class:`Statistics`; whoever reads the rows guards reading and sorting together."""
        return self.statistics.arrange(rows, window)

    def plan(self, rows: WindowRows, due: Due, allowance: Allowance, memory: bytes) -> Plan:
        """As :class:`Statistics`."""
        with content_of(due.window.start, "plan"):
            return self.statistics.plan(rows, due, allowance, memory)

    def withhold(self, due: Due, budget: int) -> Plan | None:
        """As :class:`Statistics`."""
        return self.statistics.withhold(due, budget)

    def draw(self, plan: Plan, rows: WindowRows | None, noise: Noise) -> Drawn | None:
        """As :class:`Statistics`."""
        with content_of(plan.window.start, "the draw"):
            return self.statistics.draw(plan, rows, noise)

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """As :class:`Statistics`."""
        with content_of(plan.window.start, "writing its messages"):
            return self.statistics.compose(plan, drawn, memory, number)
