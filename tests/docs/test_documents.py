"""What the documents say is tried: every command runs, every link leads somewhere, the site builds and loads nothing."""

from __future__ import annotations

import csv
import gzip
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stream.local import REPO_ROOT, free_port
from tests.docs.pages import Block, blocks, pages

RUNNABLE = [page for page in pages() if blocks(page)]
ELSEWHERE_ONLY = {"a container engine", "a service manager", "this is that run"}
"""Reasons for which a command of the documents is not run by the tests."""
SECONDS = 600


def names(page: Path) -> str:
    return str(page.relative_to(REPO_ROOT))


class Desk:
    """A new user's desk: an empty folder with the repository's config, ``hexveil`` on the path, servers of the tests."""

    def __init__(self, folder: Path, kafka: str, redis_url: str, feed: str) -> None:
        self.folder = folder
        public, operator = free_port(), free_port()
        self.addresses = {"127.0.0.1:9092": kafka, "127.0.0.1:8080": f"127.0.0.1:{public}"}
        self.addresses["127.0.0.1:6066"] = f"127.0.0.1:{operator}"
        tools = folder / ".bin"
        tools.mkdir()
        for name, module in (("hexveil", "-m stream"), ("python", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            (tools / name).chmod(0o755)
        for name in ("config", "bench", "docs"):
            (folder / name).symlink_to(REPO_ROOT / name)
        write_recordings(folder)
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO_ROOT),
            "HEXVEIL_FEED__NAME": feed,
            "HEXVEIL_FEED__TOPIC": feed,
            "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
            "HEXVEIL_KAFKA__GROUP": feed,
            "HEXVEIL_REDIS__URL": redis_url,
            "HEXVEIL_PUBLIC__PORT": str(public),
            "HEXVEIL_OPERATOR__PORT": str(operator),
            "HEXVEIL_WINDOW__IDLE_TIMEOUT": "2s",
        }

    def command(self, block: Block) -> list[str]:
        text = block.text
        for told, here in self.addresses.items():
            text = text.replace(told, here)
        return [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]

    def run(self, block: Block, code: int) -> None:
        done = subprocess.run(
            self.command(block),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        where = f"{block.page}:{block.line}"
        assert done.returncode == code, f"{where}\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"

    def leave_running(self, block: Block, stack: ExitStack) -> None:
        log = (self.folder / f"{block.line}.log").open("w")
        process = subprocess.Popen(
            self.command(block), cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        stack.callback(end, process, block)


def write_recordings(folder: Path) -> None:
    """Six made-up vehicles over a morning in Austin, in the formats and under the names that the pages use."""
    start = datetime(2017, 3, 21, 6, tzinfo=ZoneInfo("America/Chicago"))
    with (
        gzip.open(folder / "2017-03-21.csv.gz", "wt", encoding="utf-8", newline="") as capmetro,
        gzip.open(folder / "recording.csv.gz", "wt", encoding="utf-8", newline="") as canonical,
    ):
        theirs, ours = csv.writer(capmetro), csv.writer(canonical)
        theirs.writerow(
            ("vehicle_id", "timestamp", "speed", "route_id", "trip_id", "latitude", "longitude", "trip_headsign")
        )
        ours.writerow(("user", "time", "lat", "lng", "speed"))
        for minute in range(0, 150, 2):
            moment = (start + timedelta(minutes=minute)).isoformat()
            for vehicle in range(6):
                lat, lng = 30.25 + 0.01 * vehicle, -97.80 + 0.001 * minute
                theirs.writerow((vehicle, moment, 10 + vehicle, 1, 1, lat, lng, "Downtown"))
                ours.writerow((f"bus-{vehicle}", moment, lat, lng, 20 + vehicle))


def end(process: subprocess.Popen[Any], block: Block) -> None:
    """Whatever the page left running is still alive and stops when asked to."""
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert alive, f"{block.page}:{block.line} ended by itself with code {process.returncode}"


@pytest.mark.parametrize("page", RUNNABLE, ids=names)
@pytest.mark.timeout(1200)
def test_every_command_of_the_page_does_what_the_page_says(
    page: Path, kafka: str, redis: object, redis_url: str, topic_name: str, tmp_path: Path
) -> None:
    desk = Desk(tmp_path, kafka, redis_url, topic_name)
    with ExitStack() as stack:
        for block in blocks(page):
            how, _, rest = block.how.partition(" ")
            if how in ("", "exit", "small") or (how == "long" and os.environ.get("HEXVEIL_LONG_DOCS")):
                desk.run(block, int(rest or 0))
            elif how == "background":
                desk.leave_running(block, stack)
            elif how == "long":
                check_options(block)
            elif how == "elsewhere":
                assert (REPO_ROOT / rest).is_file(), f"{block.page}:{block.line}: no such test {rest}"
            else:
                assert how == "not", f"{block.page}:{block.line}: no way to test is called {block.how!r}"
                assert rest.removeprefix("here, ") in ELSEWHERE_ONLY, f"{block.page}:{block.line}: {block.how}"


def check_options(block: Block) -> None:
    """Every option that the block gives to ``hexveil`` is one that the command knows."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] != "hexveil":
            continue
        spoken = [word for word in words[1:3] if word.isalpha()]
        told = subprocess.run(
            [sys.executable, "-m", "stream", spoken[0], "--help"],
            cwd=REPO_ROOT,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
            capture_output=True,
            text=True,
        ).stdout
        for option in re.findall(r"--[a-z-]+", line):
            assert option in told, f"{block.page}:{block.line}: {option} is no option of hexveil {spoken[0]}"


def test_make_knows_every_target_that_the_documents_name() -> None:
    spoken = re.compile(r"(?:^|`)make ([a-z]+)", re.MULTILINE)
    targets = {target for page in pages() for target in spoken.findall(fenced_or_quoted(page))}
    known = set(re.findall(r"^([a-z]+):", (REPO_ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= targets
    assert targets <= known, targets - known


def fenced_or_quoted(page: Path) -> str:
    """The page's code: blocks and words between backticks."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([block.text for block in blocks(page)] + re.findall(r"`[^`\n]+`", text))


def test_every_relative_link_of_readme_and_documents_leads_to_a_file() -> None:
    broken = []
    for page in pages():
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("#"):
                continue
            if not (page.parent / target.partition("#")[0]).exists():
                broken.append(f"{names(page)}: {target}")
    assert not broken


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) > 10
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["'](?:https?:)?//|<link[^>]+rel=["'](?:stylesheet|preload|icon)["'][^>]+href=["'](?:https?:)?//|<link[^>]+href=["'](?:https?:)?//[^>]+rel=["'](?:stylesheet|preload)"""
    )
    outside = [str(page) for page in built if loaded.search(page.read_text(encoding="utf-8"))]
    assert not outside
