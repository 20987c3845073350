"""Public metrics of ``hexveil serve``: counts of released messages and of its own requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PublicMetrics:
    """All metrics of the public service, in a registry of their own."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.windows = Counter(
            "hexveil_public_windows",
            "Windows that became complete: every message that their close marker promises arrived.",
            registry=r,
        )
        self.messages = Counter(
            "hexveil_public_messages", "Messages that were read from the output topics.", registry=r
        )
        self.invalid = Counter(
            "hexveil_public_messages_invalid",
            "Messages that were refused because they do not match their schema or its limits.",
            registry=r,
        )
        self.duplicate = Counter("hexveil_public_messages_duplicate", "Messages that had arrived before.", registry=r)
        self.last_window_seconds = Gauge(
            "hexveil_public_last_window_seconds",
            "End of the newest complete window of the configured feed, unix time.",
            registry=r,
        )
        self.sse_clients = Gauge("hexveil_public_sse_clients", "Event streams that are open.", registry=r)
        self.sse_dropped = Counter(
            "hexveil_public_sse_dropped",
            "Event streams that were ended because their client read too slowly.",
            registry=r,
        )
        self.alerts = Counter("hexveil_public_alerts", "Alerts that were told, by rule.", ["rule"], registry=r)
        self.alerts_active = Gauge(
            "hexveil_public_alerts_active", "Cells that the rule names in the newest window.", ["rule"], registry=r
        )
        self.unjudged = Counter(
            "hexveil_public_windows_unjudged",
            "Windows whose alerts were not told, because too many windows waited to be judged.",
            registry=r,
        )
        self.deliveries = Counter(
            "hexveil_public_webhook_deliveries",
            "Deliveries to the webhook by outcome: delivered; failed after every attempt; dropped, because too many "
            "waited.",
            ["outcome"],
            registry=r,
        )
        self.attempts_failed = Counter(
            "hexveil_public_webhook_attempts_failed", "Attempts to deliver that failed.", registry=r
        )
        self.requests = Counter(
            "hexveil_public_requests", "Requests that were answered.", ["route", "code"], registry=r
        )
        self.request_seconds = Histogram("hexveil_public_request_seconds", "Time until an answer began.", registry=r)
