"""Operator metrics: inside the trust boundary. No metric carries a user, vehicle, route, trip or cell label."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """All ``hexveil_…`` metrics of the worker, in a registry of their own. docs/metrics.md describes them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry if registry is not None else CollectorRegistry()
        self.events_ingested = Counter("hexveil_events_ingested", "Events that were stored in Redis.", registry=r)
        self.events_rejected = Counter(
            "hexveil_events_rejected", "Events that were refused, by reason.", ["reason"], registry=r
        )
        self.events_late = Counter(
            "hexveil_events_late", "Events that came after their window was sealed, and were dropped.", registry=r
        )
        self.events_skewed = Counter(
            "hexveil_events_skewed",
            "Late events that the broker had stamped as in time, because the clocks of broker and Redis differ too "
            "much.",
            registry=r,
        )
        self.feed_misread = Gauge(
            "hexveil_feed_misread",
            "1 while most events are refused, or zone, speed (doubtful-speed if it may be right), bound or users seem "
            "to be misread.",
            ["kind"],
            registry=r,
        )
        self.events_duplicate = Counter(
            "hexveil_events_duplicate", "Events that Kafka delivered again and Redis already had.", registry=r
        )
        self.events_lost = Counter(
            "hexveil_events_lost", "Messages that Kafka's retention removed before they were read.", registry=r
        )
        self.events_beyond_limits = Counter(
            "hexveil_events_beyond_limits",
            "Events of released windows that do not count, because their user is above a limit.",
            registry=r,
        )
        self.windows_closed = Counter("hexveil_windows_closed", "Windows that were released.", registry=r)
        self.windows_withheld = Counter(
            "hexveil_windows_withheld",
            "Windows that were released as withheld, because they could not be planned.",
            registry=r,
        )
        self.windows_set_aside = Gauge(
            "hexveil_windows_set_aside",
            "Windows that cannot be closed because of their content, and are not released.",
            registry=r,
        )
        self.closing_blocked = Gauge(
            "hexveil_closing_blocked",
            "1 while the oldest due window fails for another reason than its content, so that later windows wait for "
            "it.",
            registry=r,
        )
        self.window_close_seconds = Histogram(
            "hexveil_window_close_seconds",
            "Time that closing a window took, all steps together; the draw is never timed on its own.",
            registry=r,
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )
        self.publication_behind_seconds = Histogram(
            "hexveil_publication_behind_seconds",
            "Time by which a window was published after its first instant of publication.",
            registry=r,
            buckets=(0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 3600),
        )
        self.watermark_seconds = Gauge(
            "hexveil_watermark_seconds", "Windows that end before this unix time take no more events.", registry=r
        )
        self.open_windows = Gauge(
            "hexveil_open_windows", "Windows that have rows and are not yet released.", registry=r
        )
        self.outbox_windows = Gauge(
            "hexveil_outbox_windows",
            "Windows that are due and not yet confirmed, without those that wait for their instant.",
            registry=r,
        )
        self.publish_failures = Counter(
            "hexveil_publish_failures", "Attempts to publish a window that failed.", registry=r
        )
        self.ledger_errors = Counter("hexveil_ledger_errors", "Releases that the ledger refused.", registry=r)
        self.unexpected_failures = Counter(
            "hexveil_unexpected_failures",
            "Attempts to close a window that ended in an error that the program does not expect.",
            registry=r,
        )
        self.unsealed = Counter(
            "hexveil_unsealed",
            "Attempts to close a window that waits until what Redis lost of a partition is read again.",
            registry=r,
        )
        self.ledger_retired_seconds = Gauge(
            "hexveil_ledger_retired_seconds", "Periods that began before this unix time are retired.", registry=r
        )
        self.noise_redraw = Counter(
            "hexveil_noise_redraw",
            "Draws that were discarded unseen, because another worker had committed the window.",
            registry=r,
        )
        self.redis_errors = Counter("hexveil_redis_errors", "Calls of Redis that failed.", registry=r)
        self.consumer_lag = Gauge(
            "hexveil_consumer_lag_messages", "Messages of this worker's partitions that are not yet read.", registry=r
        )
        self.messages_published = Counter(
            "hexveil_messages_published", "Messages that released windows consisted of.", registry=r
        )
        self.cells_published = Counter(
            "hexveil_cells_published", "Cells that were released with statistics.", registry=r
        )
        self.cells_suppressed = Counter(
            "hexveil_cells_suppressed", "Cells that were released as suppressed, without statistics.", registry=r
        )
        self.plans = Counter(
            "hexveil_plans",
            "Released windows by what their plan retained, where suppression or clipping is configured.",
            ["retained"],
            registry=r,
        )
        self.build_info = Gauge(
            "hexveil_build_info", "Always 1; the label is the version of Hexveil.", ["version"], registry=r
        )
