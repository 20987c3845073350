"""The parts that the release protocol uses: rows, publisher, statistics and signer; and failures of a window's
content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisError

from stream.config import Config
from stream.config.public_cells import public_cells
from stream.messages.chain import Signer, SigningKeyError
from stream.messages.message import Message
from stream.statistics.plan import PlanError
from stream.statistics.window_release import WindowStatistics
from stream.storage.ledger import LedgerError
from stream.storage.row_store import NotSealedError
from stream.terms import Terms
from stream.windows import utc_text


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


def signer_of(config: Config) -> Signer | None:
    """What signs the close markers of a configured feed. Raises :class:`LedgerError` for a key that cannot be used."""
    try:
        return None if config.signing is None else Signer.load(config.signing.key_file)
    except SigningKeyError as error:
        raise LedgerError(str(error)) from None


def statistics_of(config: Config) -> WindowStatistics:
    """The statistics of a configured feed. Raises :class:`stream.config.ConfigError` for a public area that is none."""
    return WindowStatistics(Terms.of(config), public_cells(config))
