"""What an inspection reads and keeps is bounded, whatever arrives."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.diagnosis.reading import observe_file, observe_messages
from stream.sources.standard_input import StandardInput


def test_an_inspection_reads_its_limit_of_events_whatever_arrays_hold_and_keeps_no_other_field() -> None:
    extra = ",".join(f'"x{k}":"{k}"' for k in range(100))
    event = b'{"user":"a","time":1490097600000,"lat":30.2,"lng":-97.7,"speed":1,' + extra.encode() + b"}"
    array = b"[" + b",".join([event] * 50) + b"]"
    tracemalloc.start()
    seen = observe_messages((array for _ in itertools.count()), None, 2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) == 2_000
    assert seen.kind == "JSON, arrays of objects"
    assert peak < 6_000_000


def test_a_lone_carriage_return_in_a_row_is_no_row_of_a_table(tmp_path: Path) -> None:
    row = "a,1490097600000,30.2,-97.7,1\n"
    (tmp_path / "day.csv").write_text("user,time,lat,lng,speed\n" + row + "\r0\n" + row, newline="")
    seen = observe_file(tmp_path / "day.csv", 10)
    assert (len(seen), dict(seen.unread)) == (2, {"no row of a table": 1})


def test_of_an_endless_snapshot_on_standard_input_no_more_is_read_than_a_snapshot_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    stored = StandardInput()

    def endless() -> None:
        with suppress(BrokenPipeError), os.fdopen(writing, "wb", buffering=0) as pipe:
            while True:
                pipe.write(b"header {")

    writer = threading.Thread(target=endless, daemon=True)
    writer.start()
    assert stored.peek(8) == b"header {"
    assert stored.read_whole(100_000) == b"header {" * 12_500
    sys.stdin.close()
    writer.join(10)
    assert not writer.is_alive()


def test_a_source_whose_name_is_too_long_for_a_file_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_KAFKA__BOOTSTRAP", "127.0.0.1:9")
    outcome = CliRunner().invoke(app, ["inspect", "a" * 300])
    assert outcome.exit_code == 3
    assert isinstance(outcome.exception, SystemExit)
