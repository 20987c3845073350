"""Interfaces of the parts that the release protocol uses: rows, statistics and publisher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisError

from dpcore.noise import Noise
from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.chain import Signer, SigningKeyError
from stream.messages.message import Message
from stream.statistics.plan import Allowance, Due, Plan, PlanError
from stream.statistics.window_release import Drawn, WindowStatistics
from stream.statistics.window_rows import WindowRows
from stream.storage.ledger import LedgerError
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


class SlotRows(Protocol):
    """The part of :class:`stream.storage.row_store.RowStore` that closing uses."""

    async def seal(self, slot: int) -> None:
        """Make further rows of the slot late."""

    async def read(self, slot: int, *, positions: bool) -> npt.NDArray[np.void]:
        """The rows of the slot; lat and lng may be left out if ``positions`` are not needed."""

    async def drop_rows(self, slot: int) -> None:
        """Delete the rows of the slot."""


class Publisher(Protocol):
    """Publishes committed messages."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send all messages; the last one (the close marker) is sent after the others were acknowledged."""

    async def confirm(self, messages: Sequence[Message]) -> None:
        """Read the messages back; raises if one is missing or differs."""


class Statistics(Protocol):
    """The part of :class:`stream.statistics.window_release.WindowStatistics` that closing uses. Pure."""

    @property
    def terms(self) -> Terms:
        """The terms on which windows are planned from now on."""

    @property
    def may_withhold(self) -> bool:
        """Whether it may be published that no plan of a window could be made."""

    def arrange(self, rows: npt.NDArray[np.void], window: Window) -> WindowRows:
        """The rows of ``window``, sorted."""

    def plan(self, rows: WindowRows, due: Due, allowance: Allowance, memory: bytes) -> Plan:
        """Decide who takes part, the noise scales and every user's charge, before noise is drawn."""

    def withhold(self, due: Due, budget: int) -> Plan | None:
        """The plan of a withheld window; None if the relation does not permit to withhold it publicly."""

    def draw(self, plan: Plan, rows: WindowRows | None, noise: Noise) -> Drawn | None:
        """The drawn window; None for a withheld one."""

    def compose(self, plan: Plan, drawn: Drawn | None, memory: bytes, number: int) -> tuple[list[Message], bytes]:
        """All messages, close marker last, and the new memory (empty: unchanged)."""


def signer_of(config: Config) -> Signer | None:
    """What signs the close markers of a configured feed. Raises :class:`LedgerError` for a key that cannot be used."""
    try:
        return None if config.signing is None else Signer.load(config.signing.key_file)
    except SigningKeyError as error:
        raise LedgerError(str(error)) from None


def statistics_of(config: Config) -> WindowStatistics:
    """The statistics of a configured feed. Raises :class:`stream.config.ConfigError` for a public area that is none."""
    return WindowStatistics(Terms.of(config), public_cells(config))
