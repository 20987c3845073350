"""What the release protocol needs of the parts around it: rows, statistics, and the place where messages go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpcore.noise import Noise
from stream.messages.message import Message
from stream.statistics.plan import Plan
from stream.statistics.window_release import Allowance, Drawn, WindowRows
from stream.windows import Window


class SlotRows(Protocol):
    """What closing needs of :class:`stream.storage.row_store.RowStore`."""

    async def seal(self, slot: int) -> None:
        """From now on further rows of the slot are late."""

    async def read_rows(self, slot: int) -> npt.NDArray[np.void]:
        """Every row of the slot."""

    async def drop_rows(self, slot: int) -> None:
        """Forget the slot's rows."""


class Publisher(Protocol):
    """Where committed messages go."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all, the last one (the close marker) after the others are acknowledged."""

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Read them back from the output; raises where one is missing or differs."""


class Statistics(Protocol):
    """What closing needs of :class:`stream.statistics.window_release.WindowStatistics`. Pure: no server, no clock."""

    def arrange(self, rows: npt.NDArray[np.void], window: Window) -> WindowRows:
        """The rows of ``window``, in their one order."""

    def plan(self, rows: WindowRows, window: Window, allowance: Allowance, memory: bytes, generation: str) -> Plan:
        """Who takes part, the noise scales and every user's charge, before any noise."""

    def withhold(self, window: Window, generation: str) -> Plan | None:
        """The plan of a window that cannot be planned; None where even that must not be told."""

    def draw(self, plan: Plan, rows: WindowRows | None, noise: Noise) -> Drawn | None:
        """All noise of the window; None of one that is withheld."""

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """Every message, close marker last, and the memory after the window (empty: as it was)."""
