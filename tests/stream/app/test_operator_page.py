"""The operator's page says what the metrics say, and lists only what is wrong."""

from __future__ import annotations

from stream.app.worker import page
from stream.metrics import OperatorMetrics


def test_the_page_lists_reasons_alarms_lag_and_times_and_shows_markup_as_text() -> None:
    metrics = OperatorMetrics()
    metrics.events_rejected.labels("not-json").inc(3)
    metrics.events_rejected.labels("<b>").inc(7)
    metrics.events_rejected.labels("in-future").inc(0)
    metrics.feed_misread.labels("speed").set(1)
    metrics.watermark_seconds.set(1_490_097_600)
    said = page(metrics.registry, "bus")
    assert said.index("&lt;b&gt;</th><td>7") < said.index("not-json</th><td>3")
    assert "in-future" not in said
    assert "speed</th><td>1" in said
    assert "2017-03-21T12:00:00+00:00" in said
    assert "None." in page(OperatorMetrics().registry, "bus")
