"""``hexveil doctor``: checks a running deployment. Needs its servers."""

import asyncio
import json
from dataclasses import asdict

import typer

from stream.cli.options import FAILED, UNREACHABLE, AsJson, ConfigFile, choose_config, load_to_release


def command(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check broker, topics, retention, Redis durability, clocks and the ledger, and name a remedy for each failure."""
    from stream.app.doctor import examine

    findings = asyncio.run(examine(load_to_release(choose_config(config))))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else "FAIL"
            typer.echo(f"{mark} {finding.check}: {finding.found}")
            if not finding.ok:
                typer.echo(f"     remedy: {finding.remedy}")
    if any(finding.unreachable for finding in findings):
        raise typer.Exit(UNREACHABLE)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(FAILED)
