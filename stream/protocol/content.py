"""Windows whose content fails: what a pure step raises must not stop the windows that follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from stream.statistics.plan import PlanError
from stream.windows import utc_text


class ContentError(RuntimeError):
    """A step that computes on the rows of a window raised: with the same rows it will raise again."""

    def __init__(self, slot: int, step: str, cause: BaseException) -> None:
        super().__init__(
            f"window {utc_text(slot)} cannot be closed: {step} failed with {type(cause).__name__}: {cause}. "
            "See docs/runbooks.md#windowsetaside"
        )


@contextmanager
def content_of(slot: int, step: str) -> Iterator[None]:
    """Whatever the block raises is about the content of the window, but for rows and plan that do not match and
    a Redis that does not answer.
    """
    try:
        yield
    except (PlanError, RedisError):
        raise
    except Exception as error:
        raise ContentError(slot, step, error) from error
