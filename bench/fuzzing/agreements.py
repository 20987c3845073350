"""Files of every format, mutated: what ``inspect`` calls usable and refuses is what ``replay --offline`` takes and
counts.

Twice: under the shipped configuration, and under the one that ``inspect`` suggests, as it is written and read again.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.fuzzing.hunting import FolderTarget, Hunt
from bench.fuzzing.mutation import Mutator
from bench.fuzzing.siri import siri_document
from bench.fuzzing.snapshots import stored_snapshot
from stream.config import Config, ConfigError, find_config, load_config
from stream.config.search import template
from stream.diagnosis.inspection import Inspection, configuration, inspect
from stream.diagnosis.observing import observe_file
from stream.diagnosis.reading import InspectionError, read_recording
from stream.diagnosis.snapshots import read_snapshots
from stream.ingestion.pseudonyms import KEY_BYTES
from stream.local.kafka import REPO_ROOT
from stream.sources.lines import RecordingError
from stream.terms import FixRules

FORMS = ("ndjson", "array", "document", "csv", "parquet", "snapshot", "siri")
_ROWS, _FILES = 60, 6
_KEY = bytes(KEY_BYTES)
_STRANGE = (
    "",
    " ",
    "N/A",
    "null",
    "-1",
    "nan",
    "1e400",
    "30,25",
    "3025e-2",
    "Praça",
    "21/03/2017 07:00",
    "2016-12-31T23:59:60Z",
    "x" * 300,
)
_START_MS = 1_490_097_600_000


class Agreements(FolderTarget):
    """One format. ``form``: one of :data:`FORMS`."""

    contract = "an error that names the file, or the same usable events and reasons as the service has"

    def __init__(self, form: str) -> None:
        self.name, self._form = f"agreement-{form}", form

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Six files."""
        for number in range(_FILES):
            hunt.attempt(self._content(rng, number), self._check)

    def _content(self, rng: random.Random, number: int) -> bytes:
        mutator = Mutator(rng, ("id", "latitude", "timestamp"))
        if self._form == "snapshot":
            return stored_snapshot(rng, mutator, number)
        if self._form == "siri":
            data = siri_document(rng, number)
        else:
            rows = [_row(rng, n) for n in range(_ROWS)]
            data = _written(self._form, rng, mutator, rows)
        return mutator.octets(data) if rng.random() < 0.5 else data

    def _check(self, data: bytes) -> None:
        path = self.folder / "feed"
        path.write_bytes(data)
        shipped = load_config(find_config(REPO_ROOT / "config" / "bus-fleet.toml", "values"))
        report = _inspected(path, shipped)
        if report is not None:
            _agree(report, path, shipped)
        report = _inspected(path, None)
        if report is None or not report.suggestions:
            return
        written = self.folder / "written.toml"
        text = template("values").read_text(encoding="utf-8")
        written.write_text(configuration(text, report.suggestions, report.config.relation), encoding="utf-8")
        try:
            config = load_config(find_config(written, "values"))
        except ConfigError as error:
            raise AssertionError("what is written is not sound") from error
        _agree(report, path, config)


def _inspected(path: Path, given: Config | None) -> Inspection | None:
    try:
        return inspect(observe_file(path, 10**6, given), path, given)
    except (InspectionError, RecordingError) as error:
        if not str(error):
            raise
        return None


def _agree(report: Inspection, path: Path, config: Config) -> None:
    """Compare with what the service makes of the file by itself."""
    if report.seen.is_live:
        rows, refusals, _ = read_snapshots(config, path, report.seen.command, _KEY)
        refused = refusals.counts + Counter(
            {why: count for why, count in report.seen.refused.items() if why == "no snapshot"}
        )
    else:
        rows, refusals = read_recording(config, path, config.feed.recorded_format, key=_KEY)
        refused = refusals.counts
    assert FixRules.of(config) == FixRules(), "the shipped bus fleet has no rules for faulty fixes"
    assert len(rows) == report.usable, "another number of usable events"
    assert +refused == +report.refused, "other reasons"


def _row(rng: random.Random, n: int) -> dict[str, Any]:
    user, tick = n % 6, n // 6
    row: dict[str, Any] = {
        "user": f"bus-{user}",
        "time": _START_MS + 30_000 * tick,
        "lat": round(30.2 + user / 100 + tick * 0.0027, 6),
        "lng": -97.7,
        "speed": 36.0,
    }
    if rng.random() < 0.1:
        row[rng.choice(list(row))] = rng.choice(_STRANGE)
    return row


def _written(form: str, rng: random.Random, mutator: Mutator, rows: list[dict[str, Any]]) -> bytes:
    if form == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, list(rows[0]), delimiter=rng.choice(",;\t|"))
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue().encode(rng.choice(("utf-8", "utf-8-sig", "utf-16", "cp1252")))
    if form == "parquet":
        out_bytes = io.BytesIO()
        texts = {name: [str(row[name]) for row in rows] for name in rows[0]}
        pq.write_table(pa.table(texts if rng.random() < 0.5 else _typed(rows)), out_bytes)
        return out_bytes.getvalue()
    lines = [mutator.json(row) if rng.random() < 0.2 else json.dumps(row).encode() for row in rows]
    if form == "ndjson":
        return b"\n".join(lines)
    array = b"[" + b",".join(lines) + b"]"
    return array if form == "array" else b'{"result":{"records":' + array + b"}}"


def _typed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns with nothing in place of what is of another type."""
    kinds = {"user": str, "time": int, "lat": float, "lng": float, "speed": float}
    return {name: [row[name] if isinstance(row[name], kind) else None for row in rows] for name, kind in kinds.items()}
