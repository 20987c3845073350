"""The folder of recordings that some benchmarks need."""

from __future__ import annotations

import os
from pathlib import Path

from stream.local.kafka import REPO_ROOT


def recordings() -> Path:
    """``$HEXVEIL_DATA``, else ``../shared/data`` beside the repository."""
    return Path(os.environ.get("HEXVEIL_DATA") or REPO_ROOT.parent / "shared" / "data")


def absent(*needed: str) -> str | None:
    """A sentence that names the missing files and the remedy, or None if all of them are among the recordings."""
    missing = [name for name in needed if not (recordings() / name).is_file()]
    if not missing:
        return None
    return f"no {', '.join(missing)} in {recordings()}; let HEXVEIL_DATA name the folder of the recordings"


def absences(*wanted: str) -> dict[str, str]:
    """``without``: the sentence of :func:`absent`, for a report that is made without these files; empty if none is
    missing."""
    sentence = absent(*wanted)
    return {} if sentence is None else {"without": sentence}


def path_of_day(day: str) -> str:
    """File of a recorded day of Austin's buses."""
    return f"capmetro/{day}.csv.gz"
