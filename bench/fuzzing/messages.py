"""Messages of the feed: every format, in batches of mutated and sound ones."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import h3.api.numpy_int as h3

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.mutation import Mutator, json_of
from stream.config import Config, load_config
from stream.config.feed import MAX_FUTURE
from stream.diagnosis.refusals import Refusals
from stream.ingestion.decoding import REASONS, Batch, Decoder, Reason
from stream.ingestion.formats import feed_format, field_path, walk
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT

NOW_US = 1_700_000_000_000_000
"""Arrival of every message."""
FORMATS = ("canonical", "capmetro", "capmetro-2015", "itms", "declared", "declared-s", "declared-text", "ngsi-ld")
_DECLARED = {
    "declared": {"time_format": "epoch-ms"},
    "declared-s": {"time_format": "epoch-s"},
    "declared-text": {"time_format": "rfc3339"},
    "ngsi-ld": {
        "user": "id",
        "time": "location.observedAt",
        "lat": "location.value.coordinates.1",
        "lng": "location.value.coordinates.0",
        "value": "speed.value",
    },
}
_PATHS = {"user": "vehicle.id", "time": "vehicle.at", "lat": "places.0.lat", "lng": "places.0.lng", "value": "kmh"}
_SOUND, _CROSSED, _MUTATED = 32, 960, 64
"""Messages of a batch: sound ones, ones whose fields are crossed with odd values, and ones mutated by structure and
bytes."""
_ODD = 0.3
"""Share of the fields of a crossed message that are odd."""
_SLOT = "\0slot"

Labelled = tuple[bytes | None, bytes | None]
"""A message, and the row that it must give; None where that is not known."""


def feed_config(name: str, paths: Mapping[str, str] = _PATHS, lateness: str = "append-time") -> Config:
    """The shipped bus fleet with the feed format ``name``; ``paths``: the fields of a declared one."""
    declared = _DECLARED.get(name)
    feed: dict[str, Any] = {"feed.format": "declared" if declared else name, "window.lateness": lateness}
    if declared:
        feed["feed.fields"] = {**paths, **declared}
    return load_config(REPO_ROOT / "config" / "bus-fleet.toml", **feed)


def sound_event(name: str, rng: random.Random) -> dict[str, Any]:
    """An event that a feed of this format accepts."""
    moment = NOW_US // 1000 - rng.randrange(3_600_000)
    text = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    time: Any = moment if rng.random() < 0.5 else text
    user: Any = f"bus-{rng.randrange(50)}" if rng.random() < 0.8 else rng.randrange(1000)
    lat, lng = round(rng.uniform(30.0, 30.6), 6), round(rng.uniform(-98.0, -97.5), 6)
    speed = rng.choice((rng.randrange(90), round(rng.uniform(0, 90), 2)))
    if name.startswith("declared"):
        time = {"declared": time, "declared-s": moment / 1000, "declared-text": text}[name]
        return {"vehicle": {"id": user, "at": time}, "places": [{"lat": lat, "lng": lng}], "kmh": speed}
    place = {"type": "Point", "coordinates": [lng, lat]}
    if name == "ngsi-ld":
        return {"id": user, "location": {"value": place, "observedAt": text}, "speed": {"value": speed}}
    if name == "itms":
        return {"license_plate": user, "observationDateTime": time, "location": place, "speed": speed}
    keys = ("user", "time", "lat", "lng", "speed")
    if name != "canonical":
        keys = ("vehicle_id", "timestamp", "latitude", "longitude", "speed")
    return dict(zip(keys, (user, time, lat, lng, speed), strict=True)) | {"route": "803"}


def _with_slots(event: dict[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """A copy of ``event`` with a numbered slot at each of ``paths``."""
    copied: dict[str, Any] = json.loads(json.dumps(event))
    for number, path in enumerate(paths):
        *parents, leaf = field_path(path)
        holder = walk(copied, tuple(parents))
        holder[leaf] = f"{_SLOT}{number}"
    return copied


class Messages(Target):
    """Batches of one format. A twin reads the same events by declared paths, where there is one."""

    contract = (
        "each message gives one row within all bounds, or one reason; its neighbours and its batch change neither"
    )

    def __init__(self, name: str) -> None:
        self.name, self._format = f"messages-{name}", name
        self._config = feed_config(name)
        self._domain = self._config.feed.domain
        self._key = bytes(KEY_BYTES)
        self._decoder = self._twin = Decoder(self._config, self._key)
        if name == "canonical":
            same_paths = {"user": "user", "time": "time", "lat": "lat", "lng": "lng", "value": "speed"}
            self._twin = Decoder(feed_config("declared", same_paths), self._key)

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """One batch with a decoder of its own; some of its messages alone as well."""
        self._decoder = Decoder(self._config, self._key)
        mutator = Mutator(
            rng, ("vehicle_id", "latitude", "license_plate", "observationDateTime", "location", "coordinates", "id")
        )
        events = [sound_event(self._format, rng) for _ in range(_SOUND)]
        sound: list[Labelled] = [
            (value, self._row_alone(value)) for value in (json.dumps(event).encode() for event in events)
        ]
        strange: list[Labelled] = [(self._mutated(mutator, rng.choice(events)), None) for _ in range(_MUTATED)]
        crossed: list[Labelled] = [(value, None) for value in self._crossed(mutator, events, _CROSSED)]
        batch = sound + strange + crossed
        rng.shuffle(batch)
        hunt.attempt(batch, self._check, mutated=[value for value, _ in strange + crossed])
        hunt.attempt(sound + strange, self._check_all, mutated=())
        hunt.attempt(strange + crossed, self._check_array, mutated=())
        hunt.attempt(sound, self._check_sound_array, mutated=())

    def _crossed(self, mutator: Mutator, events: list[dict[str, Any]], count: int) -> list[bytes]:
        """Messages of the format whose fields take sound and odd values independently."""
        rng, fields = mutator.rng, self._decoder_fields()
        pools = []
        for path in fields:
            sound = [json_of(walk(event, field_path(path))) for event in events]
            odd = [json_of(mutator.scalar()) for _ in range(len(sound))]
            odd += [json_of(mutator.tree(walk(event, field_path(path)))) for event in events]
            pools.append(
                rng.choices(sound, k=round(count * (1 - _ODD))) + rng.choices(odd, k=count - round(count * (1 - _ODD)))
            )
            rng.shuffle(pools[-1])
        template = json_of(_with_slots(rng.choice(events), fields))
        for at in range(len(fields)):
            template = template.replace(json_of(f"{_SLOT}{at}"), b"%b")
        return [template % values for values in zip(*pools, strict=True)]

    def _decoder_fields(self) -> tuple[str, ...]:
        return feed_format(self._config.feed).fields.paths

    @staticmethod
    def _mutated(mutator: Mutator, event: dict[str, Any]) -> bytes | None:
        choice = mutator.rng.random()
        if choice < 0.002:
            return None if choice < 0.001 else bytes(1 << 17)
        if choice < 0.02:
            return mutator.rng.randbytes(mutator.rng.randrange(60))
        return mutator.json(event)

    def _row_alone(self, value: bytes) -> bytes:
        batch = self._decoder.decode([value], NOW_US)
        assert len(batch.rows) == 1, "a sound message is refused"
        return batch.rows.tobytes()

    def _check(self, batch: list[Labelled]) -> Batch:
        values = [value for value, _ in batch]
        decoded = self._decoder.decode(values, NOW_US)
        assert sorted({*decoded.index.tolist(), *decoded.refused.tolist()}) == list(range(len(batch)))
        rows = decoded.rows
        by_index = dict(zip(decoded.index.tolist(), rows, strict=True))
        for at, (_, expected) in enumerate(batch):
            if expected is not None:
                assert at in by_index, "a sound message is refused beside others"
                assert by_index[at].tobytes() == expected, "a sound message gives another row beside others"
        assert REASONS.index(Reason.UNDECODABLE) not in decoded.reason, "an unexpected error in a message"
        self._within_bounds(decoded)
        return decoded

    def _check_array(self, batch: list[Labelled]) -> Batch:
        """The same messages as the elements of one, those of NGSI-LD as a notification."""
        values = [value for value, _ in batch if value is not None and len(value) < 200]
        array = b"[" + b",".join(values) + b"]"
        if self._format == "ngsi-ld":
            array = b'{"type":"Notification","data":' + array + b"}"
        decoded = self._decoder.decode([array], NOW_US)
        assert decoded.messages == 1
        assert REASONS.index(Reason.UNDECODABLE) not in decoded.reason, "an unexpected error in an element"
        self._within_bounds(decoded)
        return decoded

    def _check_sound_array(self, batch: list[Labelled]) -> None:
        decoded = self._check_array(batch)
        assert decoded.rows.tobytes() == b"".join(row or b"" for _, row in batch), "an element gives another row"

    def _within_bounds(self, batch: Batch) -> None:
        rows, domain = batch.rows, self._domain
        assert ((rows["lat"] >= domain.south * 1e7 - 1) & (rows["lat"] <= domain.north * 1e7 + 1)).all()
        assert ((rows["lng"] >= domain.west * 1e7 - 1) & (rows["lng"] <= domain.east * 1e7 + 1)).all()
        assert ((rows["value"] >= 0) & (rows["value"] <= 2**31 - 1)).all()
        window = self._config.window
        oldest, newest = NOW_US - window.max_age.total_seconds() * 1e6, NOW_US + MAX_FUTURE.total_seconds() * 1e6
        assert ((rows["time"] >= oldest) & (rows["time"] <= newest)).all()
        assert (batch.slots % 900 == 0).all()
        assert (rows["time"] // 1_000_000 - batch.slots >= 0).all()
        for cell in set(rows["cell"].tolist()):
            assert h3.get_resolution(cell) == self._config.hexagons.resolution

    def _check_all(self, batch: list[Labelled]) -> None:
        """Besides: each message alone, the twin, and the explanation of the refusals."""
        decoded, values = self._check(batch), [value for value, _ in batch]
        rows = dict(zip(decoded.index.tolist(), decoded.rows, strict=True))
        for at, value in enumerate(values):
            alone = self._decoder.decode([value], NOW_US)
            mine = decoded.rows[decoded.index == at]  # of several elements, if a mutation has made an array of it
            assert alone.rows.tobytes() == mine.tobytes(), "alone it gives another row"
            reasons = decoded.reason[decoded.refused == at]
            assert alone.reason.tolist() == reasons.tolist(), "alone it is refused for another reason"
        twin = self._twin.decode(values, NOW_US)
        # The typed reader skips fields that it does not need without reading them; the generic one reads them all.
        for at, row in zip(twin.index.tolist(), twin.rows, strict=True):
            assert at in rows, "the typed reader refuses what the generic one accepts"
            assert rows[at].tobytes() == row.tobytes(), "the two readers of a format give different rows"
        refusals = Refusals(self._config.feed, self._config.feed.format)
        refusals.add(values, decoded)
        assert all(isinstance(line, str) for line in refusals.told())
