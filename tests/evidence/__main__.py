"""``python -m tests.evidence [--quick] [--out FOLDER]``: runs the audits, the model of the release protocol and the
planted bugs, and writes ``evidence-DATE.json`` and ``.html``. Exit 0 if all hold.

The report says what was run on which version, with which settings, how likely chance alone makes a statistical test
fail (α), which share of the planted bugs the tests notice (their power), and the worst loss that an audit found beside
what was charged for it.
"""

import argparse
import hashlib
import html
import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dpcore import __version__
from stream.local.kafka import REPO_ROOT

AUDITS = ("tests/audit", "tests/model")
QUICK = ("tests/audit/test_participation_audit.py", "tests/audit/test_horizon_audit.py")
CONFIGURATIONS = ("config/riders-live.toml", "config/bus-fleet.toml")


class Watching:
    """A pytest plugin that notes the result of each test, the α that it states and the losses that it found."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.alphas: dict[str, float] = {}
        self.losses: list[dict[str, Any]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if (mark := item.get_closest_marker("false_alarm")) is not None:
                self.alphas[item.nodeid] = mark.args[0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.results[report.nodeid] = report.outcome
        if report.when == "call":
            losses = [value for name, value in report.user_properties if name == "loss"]
            self.losses += [{"test": report.nodeid, **value} for value in losses]


def main() -> int:
    """The whole run; returns the exit code."""
    options = argparse.ArgumentParser(prog="evidence", description=__doc__)
    options.add_argument("--quick", action="store_true", help="two audits and few planted bugs; the report says so")
    options.add_argument("--out", type=Path, default=REPO_ROOT / "dist", help="folder of the report (dist)")
    given = options.parse_args()
    watching, begun = Watching(), time.monotonic()
    pytest.main(["-q", "-p", "no:cacheprovider", *(QUICK if given.quick else ("--all", *AUDITS))], plugins=[watching])
    report = _report(watching, _planted(quick=given.quick), quick=given.quick)
    report["seconds"] = round(time.monotonic() - begun)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"evidence-{report['date'][:10]}.json"
    file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    file.with_suffix(".html").write_text(_page(report), encoding="utf-8")
    print(f"{file} and .html: {'all hold' if report['holds'] else 'NOT all hold'}")
    return 0 if report["holds"] else 1


def _planted(*, quick: bool) -> dict[str, Any]:
    """How many planted bugs were noticed, and which were not."""
    words = [sys.executable, "-m", "tests.planted_bugs", *(["--quick"] if quick else [])]
    done = subprocess.run(words, cwd=REPO_ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if " s  " in line]
    missed = [line for line in lines if not line.startswith("noticed")]
    return {"planted": len(lines), "noticed": len(lines) - len(missed), "missed": missed, "sound": done.returncode == 0}


def _report(watching: Watching, planted: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    outcomes = list(watching.results.values())
    failed = sorted(test for test, outcome in watching.results.items() if outcome == "failed")
    digests = {name: hashlib.sha256((REPO_ROOT / name).read_bytes()).hexdigest() for name in CONFIGURATIONS}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "version": __version__,
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "configurations": digests,
        "tests": {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")},
        "failed": failed,
        "alpha": sum(watching.alphas.values()),
        "alphas": watching.alphas,
        "power": planted,
        "losses": watching.losses,
        "holds": not failed and planted["sound"] and bool(planted["planted"]) and "passed" in outcomes,
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPO_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _page(report: dict[str, Any]) -> str:
    power = report["power"]
    wrong = ", ".join([*report["failed"], *power["missed"]])
    facts = {
        "date (UTC)": report["date"],
        "version": f"{report['version']}, commit {report['commit']}{' with changes' if report['changed'] else ''}",
        "run": "quick: a part of the audits and bugs" if report["quick"] else "whole",
        **{f"SHA-256 of {name}": digest for name, digest in report["configurations"].items()},
        "audits": ", ".join(f"{number} {outcome}" for outcome, number in report["tests"].items()),
        "α": f"{report['alpha']:.2g}: the most that chance alone makes any of the sampling tests fail",
        "power": f"{power['noticed']} of {power['planted']} planted bugs noticed",
        "result": "all hold" if report["holds"] else f"NOT all hold: {wrong}",
    }
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in facts.items())
    losses = "".join(
        f"<tr><td>{html.escape(loss['test'].partition('::test_')[2].replace('_', ' '))}</td>"  # the claim
        f"<td>{loss['worst']:.9g}</td><td>{loss['charged']:.9g}</td>"
        f"<td>{loss['worst'] / loss['charged']:.6f}</td></tr>"
        for loss in report["losses"]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Evidence</title><style>'
        "body{font:11pt system-ui,sans-serif;max-width:60em;margin:2em auto;color:#111;background:#fff}"
        "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #999;padding:.2em .5em;text-align:left}"
        f"</style></head><body><h1>Evidence of Hexveil {html.escape(report['version'])}</h1>\n<table>{rows}</table>\n"
        "<h2>Worst loss beside what was charged</h2>\n<p>Under participation over every small world, beside "
        "the budget; under values over random windows, of what each user was charged (1). More than 1 would break the "
        "promise.</p>"
        "<table><tr><th>audit</th><th>worst loss</th><th>charged</th><th>loss / "
        f"charge</th></tr>{losses}</table></body></html>\n"
    )


if __name__ == "__main__":
    sys.exit(main())
