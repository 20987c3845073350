"""A new user's desk: an empty folder with the repository's configurations, ``hexveil`` on the path, made-up
recordings."""

import csv
import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from bench.recordings import path_of_day
from stream.local.kafka import REPO_ROOT
from tests.docs.pages import Block

SECONDS = 300
DAYS = ("2016-11-26", "2017-03-21")
"""Recorded days that stand where benchmarks look."""


class Desk:
    """A folder, its environment, and what stands here for words of the documents, like addresses: patterns and texts.

    ``hexveil``: the words that start the command line.
    """

    def __init__(
        self, folder: Path, hexveil: Sequence[str], environment: Mapping[str, str], replaced: Mapping[str, str]
    ) -> None:
        self.folder, self.replaced = folder, replaced
        tools = folder / ".bin"
        tools.mkdir()
        for name, words in (("hexveil", hexveil), ("python", [sys.executable])):
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (tools / name).chmod(0o755)
        shutil.copytree(REPO_ROOT / "config", folder / "config")
        (folder / "docs" / "images").mkdir(parents=True)
        path = f"{tools}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(REPO_ROOT)} | dict(environment)

    def command(self, block: Block) -> list[str]:
        text = block.text
        for pattern, here in self.replaced.items():
            text = re.sub(pattern, here, text)
        return [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]

    def run(self, block: Block) -> None:
        """Run the block; it must end with the exit code that the page states."""
        done = subprocess.run(
            self.command(block), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        code = int(block.rest) if block.directive == "exit" else 0
        assert done.returncode == code, f"{block}\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"

    def leave_running(self, block: Block, stack: ExitStack) -> None:
        """Start it; when the stack is closed it must still be alive and stop when asked to."""
        log = (self.folder / f"{block.line}.log").open("w")
        process = subprocess.Popen(
            self.command(block), cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(_end, process, block)


def _end(process: subprocess.Popen[Any], block: Block) -> None:
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert alive, f"{block} ended by itself with code {process.returncode}"


def small_desk(folder: Path, hexveil: Sequence[str]) -> Desk:
    """A desk without servers, with made-up recordings where the documents and the benchmarks look.

    Benchmarks are quick, and one trial of an evaluation, or one value of a sweep, stands for many.
    """
    _write_buses(folder)
    data = folder / "data"
    for day in DAYS:
        file = data / path_of_day(day)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(folder / "2017-03-21.csv.gz")
    few = {r"(--sweep \w+=)[\d.,]+,([\d.]+)": r"\1\2"}
    return Desk(folder, hexveil, {"HEXVEIL_DATA": str(data), "HEXVEIL_BENCH_QUICK": "1"}, few)


def _write_buses(folder: Path) -> None:
    """Six made-up vehicles in two windows of a morning in Austin, in the formats and under the names that the pages
    use."""
    start = datetime(2017, 3, 21, 6, 40, tzinfo=ZoneInfo("America/Chicago"))
    with (
        gzip.open(folder / "2017-03-21.csv.gz", "wt", encoding="utf-8", newline="") as capmetro,
        gzip.open(folder / "recording.csv.gz", "wt", encoding="utf-8", newline="") as canonical,
    ):
        theirs, ours = csv.writer(capmetro), csv.writer(canonical)
        capmetro.write("vehicle_id,timestamp,speed,route_id,trip_id,latitude,longitude,trip_headsign\r\n")
        ours.writerow(("user", "time", "lat", "lng", "speed"))
        for minute in range(0, 40, 2):
            moment = (start + timedelta(minutes=minute)).isoformat()
            for vehicle in range(6):
                lat, lng = 30.25 + 0.01 * vehicle, -97.80 + 0.002 * minute
                theirs.writerow((vehicle, moment, 10 + vehicle, 1, 1, lat, lng, "Downtown"))
                ours.writerow((f"bus-{vehicle}", moment, lat, lng, 20 + vehicle))
