"""``hexveil check``: checks a configuration and says what it promises. Needs no server."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from dpcore.accounting import NANO
from dpcore.budget import from_micro
from dpcore.errors import DPError
from dpcore.relation import NeighbouringRelation
from stream.cli.check_rules import rules_of, text_of
from stream.cli.evaluate import read_rows
from stream.cli.options import AsJson, ConfigFile, UsersAreEvents, choose_config, load_to_release, stop, write_text
from stream.config import Config
from stream.config.feed import derived_speed_note
from stream.config.promise import NAMES, bounds, one_day_among_others
from stream.config.speed import FROM_BINS

_COUNTED = {
    "share": "users, each once in the window, divided over their cells",
    "user": "users, each once in each of their cells",
    "sample": "samples",
}
"""What the count of a cell counts, by ``participation.weight``."""


def _participation(settings: Config) -> dict[str, Any] | None:
    """Size of the public list of cells and noise of a count, after both were checked; None under "values"."""
    if settings.participation is None:
        return None
    from dpcore.smoothing import MOST_CELLS
    from stream.config.public_cells import public_cells
    from stream.statistics.participation.draw import count_half_width
    from stream.terms import Terms

    try:
        half, cells = round(count_half_width(Terms.of(settings)), 2), len(public_cells(settings))
        remembered = min(cells, MOST_CELLS)
        return {
            "cells": cells,
            "remembered": remembered,
            "weight": settings.participation.weight,
            "count_half_width": half,
        }
    except DPError as error:
        stop(error)


def _promise(settings: Config) -> str:
    privacy = settings.privacy
    if privacy.accounting == "pure":
        return f"{privacy.budget}-differentially private"
    rho = _amount(settings, privacy.ledger_budget)
    return f"{rho}-zCDP, hence ({privacy.budget}, {privacy.delta})-differentially private,"


def _histogram(settings: Config, windows: int) -> dict[str, Any] | None:
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
        f"Every released window has spatial histograms: {names}. Each protects participation. For all of them, a user "
        f"with a fix in the box pays {costs['unit']} {costs['cost_per_window']:g} per window, and "
        f"{costs['cost_per_period']:g} if they have one in every window of a period. Together with speed this is "
        f"{costs['window_cost_with_speed']:g} and {costs['period_cost_with_speed']:g}."
    )
    if settings.relation == NeighbouringRelation.VALUES:
        text += (
            "\nWith histograms, every window charges each user the whole epsilon for speed, because their exact loss "
            "depends on who else was there, and later histograms would reveal it. Under 'values' it is public who was "
            "where: the hexagons show it."
        )
    return text


def _report(settings: Config, released: dict[str, Any] | None, histogram: dict[str, Any] | None) -> dict[str, object]:
    windows = settings.privacy.period // settings.window.slot
    report: dict[str, object] = {
        "relation": settings.relation,
        "unit": f"one user for {settings.privacy.period}",
        "budget": settings.privacy.budget,
        **_epsilon_of_windows(settings),
        "windows_per_period": windows,
        "over_days": {str(bound.days): bound.epsilon for bound in bounds(settings)},
        "speeds": settings.feed.speeds,
        "map": settings.public.map,
        "windows_of_longest_period": settings.slotting.most_slots(int(time.time())),
        "windows_with_full_epsilon": windows
        if settings.privacy.admission == "rolling"
        else min(settings.privacy.ledger_budget // settings.window_grant, windows),
    }
    if settings.publication is not None:
        instants = settings.publication
        report["published_after_end_seconds"] = (instants.delay + instants.margin).total_seconds()
    if released is not None:
        report |= released
    if settings.shared_ledger is not None:
        report["ledger"] = settings.shared_ledger
    if settings.privacy.accounting == "zcdp":
        rolling = settings.privacy.admission == "rolling"
        grant = _first_grant(settings) if rolling else settings.privacy.ledger_grant
        rho, rho_budget = grant / NANO, settings.privacy.ledger_budget / NANO
        report |= {"accounting": "zcdp", "rho": rho, "rho_budget": rho_budget, "delta": settings.privacy.delta}
    if histogram is not None:
        report["histogram"] = histogram
    if worst := _worst_errors(settings):
        report["worst_error"] = {"times": "cells of a user / users of a cell", "unit": settings.value.unit} | worst
    return report


def _epsilon_of_windows(settings: Config) -> dict[str, float]:
    """The most that a user may lose in one window; with rolling grants in the first of a period, and in any."""
    privacy = settings.privacy
    if privacy.admission != "rolling":
        return {"epsilon_per_window": privacy.epsilon}
    first = privacy.stated_epsilon(_first_grant(settings))
    return {"epsilon_per_window": first, "most_epsilon_of_a_window": privacy.budget}


def _first_grant(settings: Config) -> int:
    """What a user may spend in the first window of today's period, in the ledger's unit, with rolling grants."""
    from stream.statistics.plan import Due
    from stream.terms import Terms

    terms = Terms.of(settings)
    today = terms.period_of(terms.window_at(int(time.time())))
    first = Due(terms, terms.window_at(today.start), "check")
    return settings.privacy.ledger_budget // first.windows_left


def _worst_errors(settings: Config) -> dict[str, float]:
    """E of a mean ("value") in the value's unit and of a variance in its square, times a user's cells over a cell's
    users: all samples retained, users alike, ε shared evenly.

    Under "values" and pure ε only: there a plan's noise follows from counts.
    """
    speed, values = settings.speed, settings.relation == NeighbouringRelation.VALUES
    if not values or "mean" not in speed.statistics or settings.privacy.accounting != "pure":
        return {}
    shares = {"distribution" if name in FROM_BINS else name for name in speed.statistics}
    width, each = settings.value.upper - settings.value.lower, len(shares) / settings.privacy.epsilon
    worst = {"value": round(width * each, 1)}
    return worst | {"variance": round(width**2 * each, 1)} if "variance" in shares else worst


def _sentences(settings: Config, released: dict[str, Any] | None, histogram: dict[str, Any] | None) -> Iterator[str]:
    shared, period = settings.shared_ledger, settings.privacy.period
    by_whom = "" if shared is None else f" by all feeds that share ledger '{shared}', together,"
    span = f"{period.days} day(s)" if not period.seconds else f"{period.total_seconds() / 3600:g} h"
    yield (
        f"Promise: for one user of feed '{settings.feed.name}' and one ledger period ({span}), everything "
        f"published{by_whom} is {_promise(settings)} under relation '{settings.relation}'."
    )
    if released is not None:
        yield (
            f"Every window publishes {released['cells']} cells, visited or not, and one close marker. The count of a "
            "cell counts "
            f"{_COUNTED[released['weight']]}. Its 95 % interval is ± {released['count_half_width']:g} in every cell."
        )
        if released["remembered"] < released["cells"] and "kalman" in settings.speed.post_processing:
            yield (
                f"Warning: the model remembers {released['remembered']} of these cells. Make participation.geojson or "
                "feed.domain the area in which people drive, or lower hexagons.resolution."
            )
    if settings.public.map == "typical":
        yield (
            "Typical, not live: the page opens on what each hour is usually like, learned over days from what was "
            "released. What happens now, one window of this map hardly shows."
        )
    if settings.publication is not None:
        instants = settings.publication
        yield (
            f"A window is published {(instants.delay + instants.margin).total_seconds():g} s after its end, whatever "
            f"it holds; one whose draw takes longer, a multiple of {instants.margin.total_seconds():g} s later."
        )
    if settings.window.lateness == "append-time":
        now = int(time.time())
        first = max(settings.slotting.period_of(now).end, settings.slotting.whole_from(now))
        begins = datetime.fromtimestamp(first, ZoneInfo(settings.feed.timezone))
        yield (
            f"A new feed shows nothing until its first whole period: one that began now, until {begins:%Y-%m-%d %H:%M} "
            f"({settings.feed.timezone})."
        )
    if histogram is not None:
        yield _histogram_text(settings, histogram)
    if worst := _worst_errors(settings):
        unit = settings.value.unit
        variance = f", of a variance at most {worst['variance']:g} ({unit})^2" if "variance" in worst else ""
        yield (
            f"Worst-case error E of a mean: {worst['value']:g} {unit}{variance}, times k/n, where n users alike are in "
            "a cell and each is in k, if epsilon is "
            "shared evenly and nothing clipped. Every release states its own, hexveil evaluate those of a recording."
        )
    yield from _over_days(settings)
    note = derived_speed_note(settings.relation, settings.feed.speeds)
    if note is not None:
        yield f"Note: feed.speeds is {settings.feed.speeds!r}. {note}"
    yield from _unpaid(settings)


def _over_days(settings: Config) -> Iterator[str]:
    """What the days cost together, and what the relation leaves open."""
    costs = ", ".join(f"{NAMES[bound.days]} ε {bound.epsilon:.4g}" for bound in bounds(settings))
    converted = (
        ""
        if settings.privacy.delta is None
        else f", each converted once from the sum of ρ, at δ {settings.privacy.delta:g}"
    )
    yield (
        f"What one user did costs at most, in all releases together: {costs}{converted}. 'hexveil check --sheet "
        "promise.html' says what that means."
    )
    among = one_day_among_others(settings)
    if among is not None:
        yield (
            f"With a horizon one day's data decide who has budget later: by the day's own releases a day costs ε "
            f"{settings.privacy.budget:g}, by all releases of its block at most {among:.4g}."
        )
    if settings.relation == NeighbouringRelation.VALUES:
        yield (
            "Warning: this protects measured speeds, not where or when. Anybody can compute rough speeds from public "
            "positions and times, whatever is released."
            if settings.value.is_speed
            else f"Warning: this protects what was measured ({settings.value.name}), not where or when."
        )


def _unpaid(settings: Config) -> Iterator[str]:
    """Which windows of a period the budget does not pay for, if a user spends all of each."""
    if settings.privacy.admission == "rolling":
        pure, service = settings.privacy.accounting == "pure", settings.privacy.service
        hours = "" if service is None else " in the hours of service"
        yield (
            f"Grants roll: in each window a user may spend what they have left, divided by the windows left{hours} of "
            f"the period; with nothing spent, {_amount(settings, _first_grant(settings))} of "
            f"{'epsilon' if pure else 'rho'} in the first, and in the last all of it."
        )
        return
    usual, longest = settings.privacy.period // settings.window.slot, settings.slotting.most_slots(int(time.time()))
    full, pure = settings.privacy.ledger_budget // settings.window_grant, settings.privacy.accounting == "pure"
    allowance = "epsilon" if pure else "rho"
    of_one = settings.privacy.epsilon if pure else _amount(settings, settings.privacy.ledger_grant)
    budget, besides = f"budget {settings.privacy.given_budget}", ""
    if settings.histogram_grant:
        besides = f" and {_amount(settings, settings.histogram_grant)} for histograms"
    if full < usual:
        paid = (
            f"{budget} pays for {full} of {usual} windows at {allowance} {of_one}{besides}; a user who spends all of it"
        )
        longer = f", or {_paying(settings, longest)} for the {longest} of the longest period" if longest > usual else ""
        remedies = f"To pay for all of them, {_paid_by(settings, usual)}{longer}."
        if settings.privacy.admission == "paced":
            yield (
                f"Note: {paid} in each takes part in about {full} windows of a period, spread over it "
                f"(privacy.admission 'paced'). {remedies}"
            )
        else:
            yield (
                f"Warning: {paid} in each contributes nothing after that, so the last windows of a period go dark "
                f"(privacy.admission = 'paced' spreads the budget over it). {remedies}"
            )
    elif full < longest:
        yield (
            f"Note: in {settings.feed.timezone} the longest period, in which the clocks go back, has {longest} windows "
            f"instead of {usual}, and {budget} pays for {full}; a user who spends all of {allowance} in each "
            f"contributes nothing after that. To pay for all of them, {_paid_by(settings, longest, besides='')}."
        )


def _paid_by(settings: Config, windows: int, besides: str = "lengthen window.slot, or ") -> str:
    """What makes the budget pay for so many windows."""
    lower = "lower epsilon, " if besides and settings.privacy.accounting == "pure" else ""
    key = "budget" if settings.privacy.accounting == "pure" else "windows"
    return f"{lower}{besides}set {key} to {_paying(settings, windows)}"


def _paying(settings: Config, windows: int) -> str:
    """The budget that pays for so many windows, or their number where each gets its part of a budget."""
    pure = settings.privacy.accounting == "pure"
    return _amount(settings, windows * settings.window_grant) if pure else str(windows)


def _amount(settings: Config, units: int) -> str:
    """An amount of the ledger's unit in ε or ρ, exact."""
    return f"{(Decimal(units) / settings.privacy.ledger_unit[1]).normalize():f}"


def command(
    recording: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE|FOLDER...]", help="A recording that is to be read by it.")
    ] = None,
    config: ConfigFile = None,
    users_are_events: UsersAreEvents = False,
    as_json: AsJson = False,
    sheet: Annotated[
        Path | None, typer.Option(help="Also write the promise on one page, to be read and signed: .html or .md.")
    ] = None,
) -> None:
    """Check the configuration without any server, and say what it promises; with a recording, also whether it fits."""
    if sheet is not None and sheet.suffix not in (".html", ".md"):
        stop(f"{sheet} ends in neither .html nor .md, which choose the form of the sheet; give it one")
    chosen = choose_config(config)
    settings = load_to_release(chosen)
    if recording:
        rows = read_rows(settings, recording, settings.feed.recorded_format, users_are_events=users_are_events)
        typer.echo(f"{' '.join(map(str, recording))}: {len(rows)} events can be used", err=True)
    released = _participation(settings)
    histogram = _histogram(settings, settings.privacy.period // settings.window.slot)
    rules = rules_of(settings)
    if sheet is not None:
        from stream.cli.sheet import as_html, as_markdown

        write_text(sheet, (as_html if sheet.suffix == ".html" else as_markdown)(settings))
    if as_json:
        report = {"config": str(chosen.file)} | _report(settings, released, histogram)
        typer.echo(json.dumps(report | {"rules": [rule._asdict() for rule in rules]}))
        return
    typer.echo(f"{chosen.file}: sound")
    for line in (*_sentences(settings, released, histogram), *text_of(rules)):
        typer.echo(line)
