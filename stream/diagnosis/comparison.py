"""Says where a feed contradicts the configuration by which it is to be read: place and unit of speed. Pure."""

from __future__ import annotations

from stream.config.feed import FeedConfig
from stream.diagnosis.measures import Measures
from stream.diagnosis.observations import Observations
from stream.ingestion.formats import feed_format


def contradictions(seen: Observations, measures: Measures, feed: FeedConfig) -> list[str]:
    """Sentences on what ``feed`` says otherwise than the fixes do, each with the remedy."""
    return [*_of_the_place(measures, feed), *_of_the_unit(seen, measures, feed)]


def _of_the_place(measures: Measures, feed: FeedConfig) -> list[str]:
    if measures.middle is None:
        return []
    (lat, lng), domain = measures.middle, feed.domain
    if domain.contains(lat, lng):
        return []
    if domain.contains(lng, lat):
        return [
            f"Latitude and longitude are exchanged: most fixes are around latitude {lat:g}, longitude {lng:g}, which is in feed.domain "
            "the other way round. Exchange them in [feed.fields]."
        ]
    return [
        f"Most fixes are around latitude {lat:g}, longitude {lng:g}, outside of feed.domain, so they are refused as out-of-domain. "
        "Set feed.domain to the place of the feed."
    ]


def _of_the_unit(seen: Observations, measures: Measures, feed: FeedConfig) -> list[str]:
    declared, fits = feed_format(feed).unit, measures.speeds.fits
    if not fits or declared in fits or (seen.is_live and seen.speed_unit is not None):
        return []
    return [f"The speeds agree with positions in {' or '.join(fits)}, and the configuration reads them in {declared}."]
