"""Logs are one JSON object per line, also those of libraries; a repeated line is written once and then counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from stream.local import REPO_ROOT
from stream.logs import QUIET_SECONDS, REPEAT_SECONDS, Repeats

TALK = """
import asyncio, logging, warnings
import structlog
from stream.logs import configure_logs
configure_logs()
own, library = structlog.get_logger(), logging.getLogger("aiokafka.client")
for n in range(1000):
    library.error("Unable connect to node with id %s: %s", n, "gone")
    library.warning(f"Topic {n} is not available during auto-create initialization")
    own.warning("redis unreachable, trying again", reason="gone", seconds=n)
    own.info("window closed", window=n)
own.warning("window not closed", window="a")
own.warning("window not closed", window="b")
warnings.warn("of Python", stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("mode").exception("line one\\nline two")
"""


def test_everything_that_is_logged_is_json_and_a_thousand_repeats_are_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALK],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    assert sum(line["event"] == "window closed" for line in lines) == 1000
    other_lines = [line for line in lines if line["event"] != "window closed"]
    assert [line.get("logger", "hexveil") for line in other_lines] == [
        "aiokafka.client",
        "hexveil",
        "hexveil",
        "hexveil",
        "py.warnings",
        "mode",
    ]
    assert "ZeroDivisionError" in other_lines[-1]["exception"]


def test_a_repeat_is_told_again_after_a_pause_or_a_long_time_with_its_count() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)
    assert repeats.suppressed("a") == 0
    for _ in range(5):
        now += QUIET_SECONDS / 2
        assert repeats.suppressed("a") is None
    assert repeats.suppressed("b") == 0
    now += QUIET_SECONDS
    assert repeats.suppressed("a") == 5
    n_lines = 0
    for _ in range(round(2.5 * REPEAT_SECONDS)):
        now += 1.0
        n_lines += repeats.suppressed("a") is not None
    assert n_lines == 2


def test_what_is_remembered_of_repeats_is_bounded() -> None:
    repeats = Repeats(lambda: 0.0)
    for n in range(100_000):
        repeats.suppressed(n)
    assert len(repeats) <= 1_000
