"""Limits of the promise that readers of releases should know; the dashboard shows them under "About the noise"."""

from __future__ import annotations

LIMITS: tuple[dict[str, str | None], ...] = (
    {
        "relation": "values",
        "title": 'Relation "values" does not hide where users were.',
        "text": "If positions and times are public, anyone can compute rough speeds from distance over time.",
    },
    {
        "relation": "participation",
        "title": "Means are over users, by their weights.",
        "text": "Their intervals are for the noise; they do not say what another weighting would give. Intervals of "
        "variances are wider than necessary.",
    },
    {
        "relation": None,
        "title": "Trusted curator.",
        "text": "Whoever runs Hexveil sees the raw events. Protection begins with the releases.",
    },
    {"relation": None, "title": "Correlated users.", "text": "A driver who changes vehicles counts as two users."},
    {
        "relation": None,
        "title": "Period boundaries.",
        "text": "The budget holds for each period, so k periods cost k times the budget.",
    },
    {
        "relation": None,
        "title": "Late windows of a period",
        "text": "describe only users who still have budget.",
    },
    {
        "relation": None,
        "title": "Post-processed values",
        "text": "rest on a model. On recorded days their 95 % intervals contained the true value in 91 % to 99.9 % of cases. "
        "The interval of a value as released covers the noise with 95 %.",
    },
)
"""Limits for readers, those of one relation first. ``docs/known-limits.md`` lists all limits, also for operators."""
