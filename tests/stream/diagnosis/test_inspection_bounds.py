"""What an inspection reads and keeps is bounded, whatever arrives."""

from __future__ import annotations

import os
import sys
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.diagnosis.observing import observe_file
from stream.sources.lines import StandardInput


def test_an_inspection_reads_its_limit_of_events_and_keeps_no_other_field(tmp_path: Path) -> None:
    extra = ",".join(f'"x{k}":"{k}"' for k in range(100))
    row = f'{{"user":"a","time":1490097600000,"lat":30.2,"lng":-97.7,"speed":1,{extra}}}\n'
    (tmp_path / "day").write_text(row * 40_000)
    tracemalloc.start()
    seen = observe_file(tmp_path / "day", 2_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen) < 4_000
    assert peak < 40_000_000, "2000 trees are a sample"


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
