"""Operator metrics: inside the trust boundary. No metric carries a user, vehicle, route, trip or cell label."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """All ``hexveil_…`` metrics of the worker, in a registry of their own. docs/metrics.md describes them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        r = self.registry = registry if registry is not None else CollectorRegistry()
        counter = partial(Counter, namespace="hexveil", registry=r)
        gauge = partial(Gauge, namespace="hexveil", registry=r)
        histogram = partial(Histogram, namespace="hexveil", registry=r)
        self.events_ingested = counter("events_ingested", "Events that were stored in Redis.")
        self.events_rejected = counter("events_rejected", "Events that were refused, by reason.", ["reason"])
        self.events_late = counter("events_late", "Events that came after their window was sealed, and were dropped.")
        self.events_skewed = counter(
            "events_skewed",
            "Late events that the broker had stamped as in time, because the clocks of broker and Redis differ too "
            "much.",
        )
        self.feed_misread = gauge(
            "feed_misread",
            "1 while most events are refused, or zone, speed (doubtful-speed if it may be right), bound or users seem "
            "to be misread.",
            ["kind"],
        )
        self.events_duplicate = counter("events_duplicate", "Events that Kafka delivered again and Redis already had.")
        self.events_lost = counter("events_lost", "Messages that Kafka's retention removed before they were read.")
        self.events_beyond_limits = counter(
            "events_beyond_limits", "Events of released windows that do not count, because their user is above a limit."
        )
        self.windows_closed = counter("windows_closed", "Windows that were released.")
        self.windows_withheld = counter(
            "windows_withheld", "Windows that were released as withheld, because they could not be planned."
        )
        self.windows_set_aside = gauge(
            "windows_set_aside", "Windows that cannot be closed because of their content, and are not released."
        )
        self.closing_blocked = gauge(
            "closing_blocked",
            "1 while the oldest due window fails for another reason than its content, so that later windows wait for "
            "it.",
        )
        self.window_close_seconds = histogram(
            "window_close_seconds",
            "Time that closing a window took, all steps together; the draw is never timed on its own.",
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
        )
        self.publication_behind_seconds = histogram(
            "publication_behind_seconds",
            "Time by which a window was published after its first instant of publication.",
            buckets=(0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 3600),
        )
        self.watermark_seconds = gauge(
            "watermark_seconds", "Windows that end before this unix time take no more events."
        )
        self.open_windows = gauge("open_windows", "Windows that have rows and are not yet released.")
        self.outbox_windows = gauge(
            "outbox_windows", "Windows that are due and not yet confirmed, without those that wait for their instant."
        )
        self.publish_failures = counter("publish_failures", "Attempts to publish a window that failed.")
        self.ledger_errors = counter("ledger_errors", "Releases that the ledger refused.")
        self.unexpected_failures = counter(
            "unexpected_failures", "Attempts to close a window that ended in an error that the program does not expect."
        )
        self.unsealed = counter(
            "unsealed", "Attempts to close a window that waits until what Redis lost of a partition is read again."
        )
        self.ledger_retired_seconds = gauge(
            "ledger_retired_seconds", "Periods that began before this unix time are retired."
        )
        self.noise_redraw = counter(
            "noise_redraw", "Draws that were discarded unseen, because another worker had committed the window."
        )
        self.redis_errors = counter("redis_errors", "Calls of Redis that failed.")
        self.consumer_lag = gauge(
            "consumer_lag_messages", "Messages of this worker's partitions that are not yet read."
        )
        self.messages_published = counter("messages_published", "Messages that released windows consisted of.")
        self.cells_published = counter("cells_published", "Cells that were released with statistics.")
        self.cells_suppressed = counter(
            "cells_suppressed", "Cells that were released as suppressed, without statistics."
        )
        self.plans = counter(
            "plans",
            "Released windows by what their plan retained, where suppression or clipping is configured.",
            ["retained"],
        )
        self.build_info = gauge("build_info", "Always 1; the label is the version of Hexveil.", ["version"])
