"""One plain page for the operator, inside the trust boundary: what the metrics of this worker say now, in words.

It holds true counts, as ``/metrics`` does, and no label that could name somebody. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from prometheus_client import CollectorRegistry

REFRESH_SECONDS = 15
_ROWS = (
    ("Messages not yet read", "hexveil_consumer_lag_messages"),
    ("Windows open", "hexveil_open_windows"),
    ("Windows due and not yet confirmed", "hexveil_outbox_windows"),
    ("Windows set aside for their content", "hexveil_windows_set_aside"),
    ("Closing blocked (1: yes)", "hexveil_closing_blocked"),
    ("Windows released since the start", "hexveil_windows_closed_total"),
    ("Events stored since the start", "hexveil_events_ingested_total"),
    ("Events too late", "hexveil_events_late_total"),
    ("Releases that the ledger refused", "hexveil_ledger_errors_total"),
    ("Redis calls that failed", "hexveil_redis_errors_total"),
)
_TIMES = (
    ("No more events for windows that end before", "hexveil_watermark_seconds"),
    ("Ledger periods retired that began before", "hexveil_ledger_retired_seconds"),
)
_HEAD = (
    f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    "<title>Hexveil worker</title><style>body{font:15px/1.5 sans-serif;margin:2em;max-width:50em}"
    "td,th{padding:2px 14px 2px 0;text-align:left}td{font-variant-numeric:tabular-nums}</style>"
)


def page(registry: CollectorRegistry, feed: str) -> str:
    """The page as HTML. Of reasons and alarms it lists those that are above 0."""
    numbers = [(name, f"{registry.get_sample_value(metric) or 0:.0f}") for name, metric in _ROWS]
    moments = [(name, _moment(registry.get_sample_value(metric))) for name, metric in _TIMES]
    rejected = _labelled(registry, "hexveil_events_rejected", "_total", "reason")
    misread = _labelled(registry, "hexveil_feed_misread", "", "kind")
    return "".join(
        (
            _HEAD,
            f"<h1>Feed {escape(feed)}</h1><p>Inside the trust boundary: these are true counts of this worker.</p>",
            _table("Now", numbers + moments),
            _table("Events refused, by reason", rejected),
            _table("The feed seems to be misread", misread),
            '<p><a href="/metrics">All metrics</a> <a href="/readyz">Readiness</a></p></html>',
        )
    )


def _moment(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else "–"


def _labelled(registry: CollectorRegistry, metric: str, suffix: str, label: str) -> list[tuple[str, str]]:
    """The values above 0 of a metric by its label, the largest first."""
    samples = [sample for family in registry.collect() if family.name == metric for sample in family.samples]
    above = [(one.labels[label], one.value) for one in samples if one.name == metric + suffix and one.value > 0]
    return [(name, f"{value:.0f}") for name, value in sorted(above, key=lambda item: -item[1])]


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<h2>{title}</h2>" + (f"<table>{body}</table>" if rows else "<p>None.</p>")
