"""``hexveil check``: is this configuration sound? Needs no server."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import typer

from dpcore.budget import from_micro
from dpcore.errors import DPError
from dpcore.relation import NeighbouringRelation
from stream.cli.options import USAGE, AsJson, ConfigFile, choose_config, read_config, stop
from stream.config import Config


def _span(span: timedelta) -> str:
    return f"{span.days} day(s)" if not span.seconds else f"{span.total_seconds() / 3600:g} h"


_COUNTED = {
    "share": "users, each once in the window, divided over their cells",
    "user": "users, each once in each of their cells",
    "sample": "samples",
}
"""What a cell's count is of, by ``participation.weight``."""


def _participation(settings: Config) -> dict[str, Any] | None:
    """Size of the public cell list and noise of a count, once both are known to be sound; None under "values"."""
    if settings.participation is None:
        return None
    from stream.statistics.participation.draw import count_half_width
    from stream.statistics.participation.public_cells import public_cells

    try:
        half = round(count_half_width(settings), 2)
        return {"cells": len(public_cells(settings)), "weight": settings.participation.weight, "count_half_width": half}
    except DPError as error:
        stop(str(error), USAGE)


def _names(settings: Config) -> tuple[str, str]:
    """The allowances of a window and of a period, as configured."""
    privacy = settings.privacy
    if privacy.accounting == "zcdp":
        return f"rho {privacy.rho}", f"rho_budget {privacy.rho_budget}"
    return f"epsilon {privacy.epsilon}", f"budget {privacy.budget}"


def _promise(settings: Config) -> str:
    privacy = settings.privacy
    if privacy.accounting == "pure":
        return f"{privacy.budget}-differentially private"
    return f"{privacy.rho_budget}-zCDP, hence ({privacy.budget}, {privacy.delta})-differentially private,"


def _histogram(settings: Config, windows: int) -> dict[str, Any] | None:
    """What the spatial histograms are and cost; None without."""
    if settings.histogram is None:
        return None
    chosen, (_, per_one) = settings.histogram, settings.privacy.ledger_unit
    return {
        "epsilon": {name: from_micro(micro) for name, micro in chosen.epsilons_micro.items()},
        "unit": "rho" if settings.privacy.accounting == "zcdp" else "epsilon",
        "cost_per_window": settings.histogram_grant / per_one,
        "cost_per_period": windows * settings.histogram_grant / per_one,
        "window_cost_with_speed": settings.window_grant / per_one,
        "period_cost_with_speed": windows * settings.window_grant / per_one,
        "fixes_per_user": chosen.fixes_per_user,
        "domain": (chosen.domain or settings.feed.domain).model_dump(),
        "largest_message_bytes": max(chosen.largest_message(name) for name in chosen.mechanisms),
    }


def _histogram_text(settings: Config, costs: dict[str, Any]) -> str:
    names = ", ".join(f"{name} (epsilon {epsilon:g})" for name, epsilon in costs["epsilon"].items())
    text = (
        f"Spatial histograms in every released window: {names}. Each protects participation. A user with a fix in their box pays "
        f"{costs['unit']} {costs['cost_per_window']:g} a window for all of them, {costs['cost_per_period']:g} if they are there in every "
        f"window of a period; with speed {costs['window_cost_with_speed']:g} and {costs['period_cost_with_speed']:g}."
    )
    if settings.relation == NeighbouringRelation.VALUES:
        text += (
            "\nBeside them a window charges everybody the whole epsilon for speed: what it really loses follows from who else was "
            "there, and later histograms would show it. The hexagons still tell who was where: under 'values' that is public."
        )
    return text


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("check")
    def check(config: ConfigFile = None, as_json: AsJson = False) -> None:
        """Validate the configuration offline and say what it promises."""
        chosen = choose_config(config)
        settings = read_config(chosen)
        released = _participation(settings)
        windows = settings.privacy.period // settings.window.slot
        full = settings.privacy.ledger_budget // settings.window_grant
        report: dict[str, object] = {
            "config": str(chosen.file),
            "relation": settings.relation,
            "unit": f"one user for {settings.privacy.period}",
            "budget": settings.privacy.budget,
            "epsilon_per_window": settings.privacy.epsilon,
            "windows_per_period": windows,
            "windows_with_full_epsilon": min(full, windows),
        }
        if released is not None:
            report |= released
        if settings.privacy.accounting == "zcdp":
            report |= settings.privacy.model_dump(include={"accounting", "rho", "rho_budget", "delta"})
        histogram = _histogram(settings, windows)
        if histogram is not None:
            report["histogram"] = histogram
        if as_json:
            typer.echo(json.dumps(report))
            return
        typer.echo(f"{chosen.file}: sound")
        typer.echo(
            f"Promise: for one user of feed '{settings.feed.name}' and one ledger period ({_span(settings.privacy.period)}), everything "
            f"published is {_promise(settings)} under relation '{settings.relation}'."
        )
        if released is not None:
            typer.echo(
                f"Every window publishes {released['cells']} cells and one close marker, visited or not. Counted are "
                f"{_COUNTED[released['weight']]}: ± {released['count_half_width']:g} with 95 %, everywhere and always."
            )
        if histogram is not None:
            typer.echo(_histogram_text(settings, histogram))
        if full < windows:
            besides = f" and {histogram['cost_per_window']:g} for histograms" if histogram is not None else ""
            typer.echo(
                f"Note: {_names(settings)[1]} pays {full} of {windows} windows at "
                f"{_names(settings)[0]}{besides}; users who lose it all in each fall silent after that."
            )
