"""What ``hexveil inspect`` is given: files, answers and pipes of every form, mutated."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.fuzzing.hunting import Hunt, Target
from bench.fuzzing.messages import FORMATS, sound_event
from bench.fuzzing.mutation import Mutator
from bench.fuzzing.siri import siri_document
from bench.fuzzing.snapshots import stored_snapshot
from stream.diagnosis.inspection import inspect
from stream.diagnosis.observing import observe_file
from stream.diagnosis.reading import InspectionError
from stream.sources.lines import RecordingError

_LIMIT = 200
_SEPARATORS = ",;\t|^ "


class Inspections(Target):
    """Tables, JSON in lines and arrays, SIRI-VM and GTFS-realtime, plain and gzipped, each as one answer of a
    server."""

    name = "inspect"
    contract = "an InspectionError, a RecordingError, or an inspection, all of whose figures are finite"

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Forty answers."""
        mutator = Mutator(rng, ("id", "latitude", "longitude", "timestamp", "location", "coordinates", "9" * 5000))
        for number in range(40):
            hunt.attempt(self._answer(rng, mutator, number), _check)

    @staticmethod
    def _answer(rng: random.Random, mutator: Mutator, number: int) -> bytes:
        form = rng.random()
        if form < 0.2:
            return stored_snapshot(rng, mutator, number)
        if form < 0.4:
            data = siri_document(rng, number)
        else:
            events = [sound_event(rng.choice(FORMATS[:2]), rng) for _ in range(rng.randrange(1, 30))]
            data = _table(rng, events) if form < 0.7 else _json(rng, mutator, events)
        data = mutator.octets(data) if rng.random() < 0.7 else data
        return gzip.compress(data, 1) if rng.random() < 0.1 else data


def _table(rng: random.Random, events: list[dict[str, object]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(events[0]), delimiter=rng.choice(_SEPARATORS), extrasaction="ignore")
    writer.writeheader()
    writer.writerows(events)
    return out.getvalue().encode(rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")))


def _json(rng: random.Random, mutator: Mutator, events: list[dict[str, object]]) -> bytes:
    lines = [mutator.json(event) if rng.random() < 0.3 else json.dumps(event).encode() for event in events]
    return b"[" + b",".join(lines) + b"]" if rng.random() < 0.4 else b"\n".join(lines)


def _check(body: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "answer"
        path.write_bytes(body)
        try:
            report = inspect(observe_file(path, _LIMIT), path, limit=_LIMIT)
        except (InspectionError, RecordingError):
            return
    json.dumps(asdict(report.measures), allow_nan=False)
    assert all(isinstance(text, str) for text in report.problems)
