"""Public metrics of ``hexveil serve``: counts of released messages and of its own requests."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PublicMetrics:
    """All metrics of the public service, in a registry of their own."""

    def __init__(self) -> None:
        r = self.registry = CollectorRegistry()
        self.windows = Counter("hexveil_public_windows", "Windows complete with their close marker.", registry=r)
        self.messages = Counter("hexveil_public_messages", "Messages read from the output topics.", registry=r)
        self.invalid = Counter("hexveil_public_messages_invalid", "Messages refused by their schema.", registry=r)
        self.duplicate = Counter("hexveil_public_messages_duplicate", "Messages whose ce_id was known.", registry=r)
        self.last_window_seconds = Gauge("hexveil_public_last_window_seconds", "End of the newest window.", registry=r)
        self.sse_clients = Gauge("hexveil_public_sse_clients", "Open event streams.", registry=r)
        self.sse_dropped = Counter("hexveil_public_sse_dropped", "Event streams ended as too slow.", registry=r)
        self.requests = Counter("hexveil_public_requests", "Requests.", ["route", "code"], registry=r)
        self.request_seconds = Histogram("hexveil_public_request_seconds", "Time to answer.", registry=r)
