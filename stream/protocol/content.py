"""Errors of a window's content: an error in a pure step must not stop the windows that follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from stream.statistics.plan import PlanError
from stream.storage.sealed_rows import NotSealedError
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
