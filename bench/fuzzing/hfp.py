"""HFP publications whose topics and payloads take odd values, and mutated bytes."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import NOW_US, feed_config
from bench.fuzzing.mutation import Mutator
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.hfp import HighFrequencyPositions, Publication

_PUBLICATIONS = 120


class HfpPublications(Target):
    """Blocks of publications, one after the other into one source; half of them are sound."""

    name = "hfp"
    contract = "events of which the service can read every one, and of each sound publication one"

    def __init__(self) -> None:
        self._config = feed_config("canonical")
        self._decoder = Decoder(self._config, bytes(KEY_BYTES))

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Ten blocks into a source of their own."""
        source, mutator = HighFrequencyPositions(self._config.feed, self._config.slotting), Mutator(rng)
        for block in range(10):
            publications = [self._publication(mutator, block, number) for number in range(_PUBLICATIONS)]
            mutated = [(topic, payload) for topic, payload, is_sound in publications if not is_sound]
            hunt.attempt(publications, lambda tried: self._check(source, tried), mutated)

    @staticmethod
    def _publication(mutator: Mutator, block: int, number: int) -> tuple[str, bytes, bool]:
        rng, moment = mutator.rng, datetime.fromtimestamp(NOW_US // 1_000_000 - 900 + 15 * block, UTC).isoformat()
        topic = f"/hfp/v2/journey/ongoing/vp/bus/0018/{number:05d}/1/2/Centre/7:00/1/3/60;24/1/2/3"
        fix = {"VP": {"tst": moment, "lat": 30.2, "long": -97.7, "spd": 7.5, "oper": 18, "veh": number, "desi": "7"}}
        if rng.random() < 0.5:
            return topic, json.dumps(fix).encode(), True
        other = topic.replace("/0018/", "/0777/")  # no vehicle of the sound ones, which a wrong clock would silence
        if rng.random() < 0.3:
            other = mutator.octets(other.encode()).decode(errors="replace")
        return other, mutator.json(fix), False

    def _check(self, source: HighFrequencyPositions, tried: list[tuple[str, bytes, bool]]) -> None:
        messages = source.of([Publication(topic, payload, NOW_US) for topic, payload, _ in tried], NOW_US)
        batch = self._decoder.decode(messages.values, NOW_US)
        assert len(batch.rows) + len(batch.refused) == len(messages.values)
        assert len(messages.values) == len(messages.keys) == len(messages.due)
        assert len(messages.values) >= sum(is_sound for *_, is_sound in tried), "a sound publication is lost"
