"""Public metrics of ``hexveil serve``: counts of released messages and of its own requests."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PublicMetrics:
    """All metrics of the public service, in a registry of their own."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="hexveil_public", registry=r)
        gauge = partial(Gauge, namespace="hexveil_public", registry=r)
        histogram = partial(Histogram, namespace="hexveil_public", registry=r)
        self.windows = counter(
            "windows", "Windows that became complete: every message that their close marker promises arrived."
        )
        self.messages = counter("messages", "Messages that were read from the output topics.")
        self.invalid = counter(
            "messages_invalid", "Messages that were refused because they do not match their schema or its limits."
        )
        self.duplicate = counter("messages_duplicate", "Messages that had arrived before.")
        self.last_window_seconds = gauge(
            "last_window_seconds", "End of the newest complete window of the configured feed, unix time."
        )
        self.sse_clients = gauge("sse_clients", "Event streams that are open.")
        self.sse_dropped = counter("sse_dropped", "Event streams that were ended because their client read too slowly.")
        self.alerts = counter("alerts", "Alerts that were told, by rule.", ["rule"])
        self.alerts_active = gauge("alerts_active", "Cells that the rule names in the newest window.", ["rule"])
        self.unjudged = counter(
            "windows_unjudged", "Windows whose alerts were not told, because too many windows waited to be judged."
        )
        self.deliveries = counter(
            "webhook_deliveries",
            "Deliveries to the webhook by outcome: delivered; failed after every attempt; dropped, because too many "
            "waited.",
            ["outcome"],
        )
        self.attempts_failed = counter("webhook_attempts_failed", "Attempts to deliver that failed.")
        self.requests = counter("requests", "Requests that were answered.", ["route", "code"])
        self.request_seconds = histogram("request_seconds", "Time until an answer began.")
