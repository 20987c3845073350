"""The progress bar of a benchmark, on stderr and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def shown(steps: Iterable[T], title: str) -> Iterable[T]:
    """``steps`` under a progress bar."""
    known: Sequence[T] = list(steps)
    return track(known, title, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
