"""``hexveil check``: is this configuration sound? Needs no server."""

from __future__ import annotations

import json

import typer

from stream.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, read_config


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("check")
    def check(config: ConfigFile = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
        """Validate the configuration offline and say what it promises."""
        settings = read_config(config)
        windows = settings.privacy.period // settings.window.slot
        full = settings.privacy.budget_micro // settings.privacy.epsilon_micro
        report = {
            "config": str(config),
            "relation": settings.relation,
            "unit": f"one user for {settings.privacy.period}",
            "budget": settings.privacy.budget,
            "epsilon_per_window": settings.privacy.epsilon,
            "windows_per_period": windows,
            "windows_with_full_epsilon": min(full, windows),
        }
        if as_json:
            typer.echo(json.dumps(report))
            return
        typer.echo(f"{config}: sound")
        typer.echo(
            f"Promise: for one user ('{settings.feed.name}' feed) and one period of {settings.privacy.period}, everything "
            f"published is {settings.privacy.budget}-differentially private under relation '{settings.relation}'."
        )
        if full < windows:
            typer.echo(
                f"Note: budget {settings.privacy.budget} pays {full} of {windows} windows at epsilon "
                f"{settings.privacy.epsilon}; users who lose it all in each fall silent after that."
            )
