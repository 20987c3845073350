"""Operator metrics: inside the trust boundary. No metric carries a user, vehicle, route, trip or cell label."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """All ``hexveil_…`` metrics of the worker, in a registry of their own. docs/metrics.md describes them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry if registry is not None else CollectorRegistry()
        self.events_ingested = Counter("hexveil_events_ingested", "Events appended to state.", registry=r)
        self.events_rejected = Counter("hexveil_events_rejected", "Events refused, by reason.", ["reason"], registry=r)
        self.events_late = Counter("hexveil_events_late", "Events whose window was sealed already.", registry=r)
        self.events_skewed = Counter(
            "hexveil_events_skewed", "Late events whose own stamp was in time: clocks differ too much.", registry=r
        )
        self.events_duplicate = Counter("hexveil_events_duplicate", "Redelivered events already in state.", registry=r)
        self.events_lost = Counter("hexveil_events_lost", "Offsets that retention removed before reading.", registry=r)
        self.events_beyond_limits = Counter(
            "hexveil_events_beyond_limits",
            "Events of released windows that do not count: their user is above a limit.",
            registry=r,
        )
        self.windows_closed = Counter("hexveil_windows_closed", "Windows released.", registry=r)
        self.windows_withheld = Counter(
            "hexveil_windows_withheld", "Windows released as withheld: they could not be planned.", registry=r
        )
        self.windows_set_aside = Gauge(
            "hexveil_windows_set_aside", "Windows that cannot be closed for their content, not released.", registry=r
        )
        self.window_close_seconds = Histogram(
            "hexveil_window_close_seconds",
            "Time to close a window; draw is part of the whole, never apart.",
            registry=r,
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )
        self.publication_behind_seconds = Histogram(
            "hexveil_publication_behind_seconds",
            "Time by which a window was published after its first instant of publication.",
            registry=r,
            buckets=(0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 3600),
        )
        self.watermark_seconds = Gauge("hexveil_watermark_seconds", "Watermark, unix time.", registry=r)
        self.open_windows = Gauge("hexveil_open_windows", "Windows with rows, not yet released.", registry=r)
        self.outbox_windows = Gauge(
            "hexveil_outbox_windows",
            "Windows due but not yet confirmed, apart from those that wait for their instant.",
            registry=r,
        )
        self.publish_failures = Counter("hexveil_publish_failures", "Attempts to publish that failed.", registry=r)
        self.ledger_errors = Counter("hexveil_ledger_errors", "Releases refused by the ledger.", registry=r)
        self.unexpected_failures = Counter(
            "hexveil_unexpected_failures",
            "Attempts to close a window that ended in an error nobody foresaw.",
            registry=r,
        )
        self.ledger_retired_seconds = Gauge(
            "hexveil_ledger_retired_seconds", "Periods that began before this are retired, unix time.", registry=r
        )
        self.noise_redraw = Counter(
            "hexveil_noise_redraw", "Draws thrown away unseen after losing a commit.", registry=r
        )
        self.redis_errors = Counter("hexveil_redis_errors", "Redis calls that failed.", registry=r)
        self.consumer_lag = Gauge("hexveil_consumer_lag_messages", "Messages not yet read.", registry=r)
        self.messages_published = Counter("hexveil_messages_published", "Messages of released windows.", registry=r)
        self.cells_published = Counter("hexveil_cells_published", "Cells released with statistics.", registry=r)
        self.cells_suppressed = Counter("hexveil_cells_suppressed", "Cells released as suppressed.", registry=r)
        self.build_info = Gauge("hexveil_build_info", "Constant 1; version as label.", ["version"], registry=r)
