"""Limits of the promise that readers of releases should know; the dashboard shows them under "About the noise"."""

from __future__ import annotations

LIMITS: tuple[dict[str, str | None], ...] = (
    {"name": "values", "relation": "values"},
    {"name": "means", "relation": "participation"},
    {"name": "curator", "relation": None},
    {"name": "correlated", "relation": None},
    {"name": "periods", "relation": None},
    {"name": "late", "relation": None},
    {"name": "modelled", "relation": None},
)
"""Limits for readers, those of one relation first, by the name of their texts (``limit.NAME.title`` and ``.text`` in
``dashboard/src/texts``). ``docs/known-limits.md`` lists all limits, also for operators.
"""
