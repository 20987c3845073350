"""Measures with this implementation what the papers report, part by part; research/reproductions.md holds the verdicts.

A part is a module of its own with ``run(quick)`` and ``plot(figures, folder)``, and can be run alone:
``python -m research papers.htf``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from research.papers import at_size, bounds, cdf, choice, e2epriv, euler, htf, means, printed, suppression, tuning

PARTS = {
    "e2epriv": e2epriv,
    "choice": choice,
    "tuning": tuning,
    "htf": htf,
    "means": means,
    "suppression": suppression,
    "cdf": cdf,
    "euler": euler,
    "bounds": bounds,
    "at_size": at_size,
    "printed": printed,
}


def run(quick: bool) -> dict[str, Any]:
    """The figures of every part, by its name."""
    return {name: part.run(quick) for name, part in PARTS.items()}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """One picture per part."""
    for name, part in PARTS.items():
        part.plot(figures[name], folder)
