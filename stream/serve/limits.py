"""Limits of the promise that readers of releases should know; the dashboard shows them under "About the noise"."""

from __future__ import annotations

LIMITS: tuple[dict[str, str | None], ...] = (
    {
        "relation": "values",
        "title": 'Relation "values" does not hide whereabouts.',
        "text": "Where positions and times are public anyway, distance over time already tells speeds roughly.",
    },
    {
        "relation": "participation",
        "title": "Means are over users, by their weights:",
        "text": "their intervals are about the noise, not about what another weighting would give. Intervals of "
        "variances are wider than they need to be.",
    },
    {
        "relation": None,
        "title": "Trusted curator.",
        "text": "Whoever runs Hexveil sees the raw events; protection begins with what is published.",
    },
    {"relation": None, "title": "Correlated users.", "text": "One driver who changes vehicles is two users."},
    {
        "relation": None,
        "title": "A period boundary",
        "text": "allows the budget on each side of it: k periods cost k times the budget.",
    },
    {
        "relation": None,
        "title": "Late windows of a period",
        "text": "describe only users who still have budget left.",
    },
    {
        "relation": None,
        "title": "Post-processed values",
        "text": "rest on a model; their intervals covered between 91 % and 99.9 % on recorded days. The interval of "
        "a value as released covers 95 %.",
    },
)
"""Limits for readers, those of one relation first. ``docs/known-limits.md`` lists all limits, also for operators."""
