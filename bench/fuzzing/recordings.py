"""Recordings: CSV and NDJSON files, plain and gzipped."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from typing import Any

from bench.fuzzing.hunting import FolderTarget, Hunt
from bench.fuzzing.messages import NOW_US, feed_config, sound_event
from bench.fuzzing.mutation import Mutator
from stream.diagnosis.reading import recognised
from stream.ingestion.decoding import Decoder
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.sources.lines import RecordingError
from stream.sources.recording import Recording, in_time_order

_SOUND, _MUTATED, _FILES = 8, 24, 6
_CELLS = (
    "",
    '"',
    '""',
    '"a\nb"',
    '"a""b"',
    "\0",
    "\ufeff",
    "1,5",
    " 1 ",
    "nan",
    "inf",
    "1e400",
    "٣",
    "²",
    "1_0",
    "0x1",
    "9" * 400,
    "x" * 70_000,
)


class Recordings(FolderTarget):
    """Files of sound and mutated lines, and files whose bytes are mutated as a whole. ``kind``: csv or ndjson."""

    contract = "a RecordingError, or messages: every sound line in order, whatever is beside it; nothing is lost unsaid"

    def __init__(self, kind: str) -> None:
        self.name, self._kind = f"recordings-{kind}", kind
        self._config = feed_config("capmetro", lateness="event-time")
        self._canonical = feed_config("canonical", lateness="event-time")

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Six files of lines, and as many whose bytes are mutated."""
        mutator = Mutator(rng, ("vehicle_id", "timestamp", "latitude", "longitude"))
        events = [sound_event("capmetro", rng) for _ in range(_SOUND)]
        header = self._header(events[0])
        sound = [self._line(event) for event in events]
        for _ in range(_FILES):
            strange = [self._mutated(mutator, rng.choice(events)) for _ in range(_MUTATED)]
            lines = [(line, True) for line in sound] + [(line, False) for line in strange]
            rng.shuffle(lines)
            hunt.attempt(lines, lambda tried: self._check_lines(header, tried), mutated=strange)
            whole = b"\n".join([*header, *(line for line, _ in lines)])
            packed = rng.random() < 0.5
            damaged = mutator.octets(gzip.compress(whole, 1) if packed else whole)
            suffix = ".gz" if packed else ""
            hunt.attempt(damaged, lambda data, suffix=suffix: self._read(data, suffix))  # type: ignore[misc]

    def _header(self, event: dict[str, Any]) -> list[bytes]:
        return [",".join(event).encode()] if self._kind == "csv" else []

    def _line(self, event: dict[str, Any]) -> bytes:
        if self._kind == "ndjson":
            return json.dumps(event).encode()
        out = io.StringIO()
        csv.writer(out).writerow(event.values())
        return out.getvalue().strip().encode()

    def _mutated(self, mutator: Mutator, event: dict[str, Any]) -> bytes:
        """A mutated line; without line ends, which would make it several."""
        if self._kind == "ndjson":
            line = mutator.json(event)
        else:
            changed: dict[str, Any] = mutator.tree(event) if isinstance(event, dict) else event
            cells = [str(cell) for cell in changed.values()] if isinstance(changed, dict) else [str(changed)]
            cells[mutator.rng.randrange(len(cells))] = mutator.rng.choice(_CELLS)
            line = ",".join(cells).encode("utf-8", "surrogatepass")
            line = mutator.octets(line) if mutator.rng.random() < 0.5 else line
        return line.replace(b"\n", b"").replace(b"\r", b"")

    def _check_lines(self, header: list[bytes], lines: list[tuple[bytes, bool]]) -> None:
        sound = [line for line, is_sound in lines if is_sound]
        values = self._read(b"\n".join([*header, *(line for line, _ in lines)]), "")
        alone = self._read(b"\n".join([*header, *sound]), "") or []
        left = iter(values or [])
        assert all(value in left for value in alone), "a sound line is lost, or out of order"
        assert values is not None or not sound, "one line makes the file unreadable"

    def _read(self, data: bytes, suffix: str) -> list[bytes] | None:
        """The messages of a file with these bytes; None if it is refused as a whole."""
        path = self.folder / f"recording.{self._kind}{suffix}"
        path.write_bytes(data)
        values: list[bytes] = []
        try:
            with Recording(path, "capmetro", self._config.feed) as recording:
                for block in recognised(recording, self._config, path, "capmetro"):
                    assert len(block.due) == len(block.keys) == len(block.values) >= block.unread
                    values += block.values
            with Recording(path, "capmetro", self._canonical.feed) as converted:
                events = [value for block in in_time_order(converted, 20) for value in block.values]
        except RecordingError as error:
            if not str(error).startswith(str(path)):
                raise AssertionError("the error does not name the file") from error
            return None
        assert len(events) == len(values)
        decoder = Decoder(self._config, bytes(KEY_BYTES))
        batch = decoder.decode(values, NOW_US)
        assert len(batch.rows) + len(batch.refused) == len(values)
        return values
