"""SIRI-VM documents with odd values in their elements, and with mutated bytes."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import NOW_US, feed_config
from bench.fuzzing.mutation import NUMBERS, TEXTS, Mutator
from bench.fuzzing.snapshots import check_snapshot
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.siri import SiriVehicleMonitoring

_HEADS = (
    "",
    "<?xml version='1.0' encoding='UTF-16'?>",
    "<!DOCTYPE Siri [<!ENTITY a 'b'>]>",
    "<?xml version='1.0' encoding='utf-7'?>",
)
_ROOTS = ("Siri",) * 6 + ("Siri xmlns='http://www.siri.org.uk/siri'", f"Siri xmlns='{'u' * 2_000}'")


class SiriDocuments(Target):
    """Documents one after the other into one source."""

    name = "siri-vm"
    contract = "a SnapshotError, or events of which the service can read every one"

    def __init__(self) -> None:
        self._config = feed_config("canonical")
        self._decoder = Decoder(self._config, bytes(KEY_BYTES))

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Sixty documents into a source of their own."""
        source, mutator = SiriVehicleMonitoring(self._config.feed, self._config.slotting), Mutator(rng)
        for number in range(60):
            data = siri_document(rng, number)
            data = mutator.octets(data) if rng.random() < 0.5 else data
            hunt.attempt(data, lambda body: check_snapshot(source, body, self._decoder))


def siri_document(rng: random.Random, number: int) -> bytes:
    """A document of so many times 15 s, with an odd value now and then, and now and then a long namespace."""

    def value(sound: str) -> str:
        if rng.random() < 0.9:
            return sound
        return rng.choice(NUMBERS).decode() if rng.random() < 0.6 else escape(rng.choice(TEXTS))

    moment = datetime.fromtimestamp(NOW_US // 1_000_000 + (number - 59) * 15, UTC).isoformat()
    activities = "".join(
        f"<VehicleActivity><RecordedAtTime>{value(moment)}</RecordedAtTime><MonitoredVehicleJourney>"
        f"<OperatorRef>{value('op')}</OperatorRef><VehicleRef>{value(f'bus-{vehicle}')}</VehicleRef>"
        f"<Velocity>{value('20')}</Velocity><VehicleLocation srsName='{value('WGS84')}'>"
        f"<Longitude>{value('-97.7')}</Longitude><Latitude>{value('30.2')}</Latitude></VehicleLocation>"
        "</MonitoredVehicleJourney></VehicleActivity>"
        for vehicle in range(rng.randrange(6))
    )
    head = rng.choice(_HEADS) if rng.random() < 0.1 else ""
    text = (
        f"{head}<{rng.choice(_ROOTS)}><ServiceDelivery><ResponseTimestamp>{value(moment)}</ResponseTimestamp><VehicleMonitoringDelivery>"
        f"{activities}</VehicleMonitoringDelivery></ServiceDelivery></Siri>"
    )
    return text.encode(errors="surrogatepass")
