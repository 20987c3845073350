"""Fuzzes everything that reads bytes, each reader in a process of its own, with its own seeded mutators.

A reader states its contract; an input breaks it by an error that the contract does not name, by a wrong answer to its
neighbour or to a second reader, by more than :data:`bench.fuzzing.hunting.MAX_SECONDS` of processor time, by too much
memory, or by the end of the process. Round n of a seed always tries the same inputs, so a find can be repeated.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from typing import Any

from bench.fuzzing.targets import TARGETS
from bench.progress import shown
from stream.local.kafka import REPO_ROOT

FULL_SECONDS, QUICK_SECONDS = 300.0, 1.0
"""Seconds of each target."""
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's own allocator reserves as many addresses as an input may take."""
_SILENT_SECONDS = 600.0
"""A process that reports nothing for so many seconds hangs. The time is long, because the machine may be busy."""
_LAST_WORDS = 4_000


def run(quick: bool, target: str | None = None, seconds: float | None = None) -> dict[str, Any]:
    """Inputs tried and finds, of every target or of ``target``, with ``seconds`` for each."""
    seed = 1 if quick else secrets.randbelow(1 << 32)
    length = seconds or (QUICK_SECONDS if quick else FULL_SECONDS)
    reports = [_hunted(name, seed, length) for name in shown([target] if target else list(TARGETS), "fuzzing")]
    return {
        "seed": seed,
        "inputs": sum(report["inputs"] for report in reports),
        "bytes": sum(report["bytes"] for report in reports),
        "finds": sum(len(report["finds"]) for report in reports),
        "growing": [report["target"] for report in reports if report["grows"]],
        "targets": reports,
    }


def _hunted(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """The last report of a process that hunts; how it ended is a find if it did not end by itself."""
    command = [sys.executable, "-m", "bench.fuzzing.child", name, str(seed), str(seconds)]
    process = subprocess.Popen(
        command, cwd=REPO_ROOT, env=os.environ | _ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    errors = process.stderr
    assert errors is not None
    words: list[bytes] = []
    listener = threading.Thread(target=lambda: words.append(errors.read()), daemon=True)
    listener.start()
    watch = threading.Timer(_SILENT_SECONDS, process.kill)
    report: dict[str, Any] = {
        "target": name,
        "seed": seed,
        "rounds": 0,
        "inputs": 0,
        "bytes": 0,
        "grows": False,
        "finds": [],
    }
    try:
        watch.start()
        for line in process.stdout:
            report = json.loads(line)
            watch.cancel()
            watch = threading.Timer(_SILENT_SECONDS, process.kill)
            watch.start()
        code = process.wait()
    finally:
        watch.cancel()
        process.kill()
        process.wait()
    listener.join()
    if not report.pop("ended", False):
        last = b"".join(words)[-_LAST_WORDS:].decode(errors="replace")
        report["finds"].append(
            {"error": f"the process ended with {code}", "where": last, "data": "", "round": report["rounds"]}
        )
    return report
