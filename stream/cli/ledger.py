"""``hexveil ledger``: shows the spent budgets to the operator (inside the trust boundary), and adopts periods."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from stream.cli.options import FAILED, AsJson, ConfigFile, asked, choose_config, load_to_release, stop
from stream.config import Config

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from stream.storage.shared_ledger import SharedLedger


async def _totals(redis: Redis, config: Config) -> tuple[dict[str, dict[str, float]], int | None, dict[str, int]]:
    """Users and charges by period, until when periods are retired, and the feeds that share the ledger, with what they
    hold.

    Times are epoch seconds.
    """
    from stream.storage.ledger import Ledger
    from stream.storage.shared_ledger import SharedLedger

    ledger = Ledger.of(redis, config)
    await ledger.kept_under(config.ledger_policy)
    totals = {period: await ledger.total(period) for period in await ledger.periods()}
    retired, shared = await ledger.retired(), SharedLedger.of(redis, config)
    feeds = {} if shared is None else await shared.feeds()
    unit, _ = config.privacy.ledger_unit
    return {period: {"users": users, unit: total} for period, (users, total) in totals.items()}, retired, feeds


_ADOPTING = """\
A ledger releases windows of periods that begin after it was born. It cannot know whether another ledger (an older
name of this feed, another Redis, a ledger that was lost) granted the budgets of earlier periods. If you adopt
periods, every user gets their whole budget in each of them. Do it only if no other ledger ever released anything
about these users in these periods, because the feed is new or the recording was never released. Then repeat the
command with --no-other-ledger."""


def _moment(config: Config, text: str) -> int:
    """A local date or an RFC 3339 time as epoch seconds. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(config.feed.timezone))).timestamp())


async def _adopt(redis: Redis, config: Config, since: int) -> int:
    from stream.protocol.ledger_check import Known, LedgerCheck
    from stream.storage.ledger import Ledger

    ledger = Ledger.of(redis, config)
    await LedgerCheck(config, redis, ledger, Known()).verify()
    return await ledger.adopt(since)


_LEAVING = """\
A shared ledger keeps every period of which one of its feeds may still release a window, and takes the least budget
that a feed states. If a feed leaves, it has no say in either any more, and releases nothing until its worker joins
again: then only windows of periods that begin later. What it charged stays charged. First stop all of its workers, or
they join again at once; then repeat the command with --yes."""


def _shared(redis: Redis, config: Config) -> SharedLedger:
    from stream.storage.shared_ledger import SharedLedger

    shared = SharedLedger.of(redis, config)
    assert shared is not None, "the command was refused without [ledger]"
    return shared


def _require_shared(config: Config) -> None:
    if config.shared_ledger is None:
        stop(f"feed '{config.feed.name}' has a ledger of its own: the configuration has no [ledger]")


_RAISING = """\
The feeds of a shared ledger get the least budget that one of them states, from the next period on. A worker that
starts with a lower budget states it; no worker raises what its feed states, because another one may run that promises
less. With --yes the budget of this configuration is stated, lower or higher. First stop all workers of the feed that
are configured with a lower one, or they state theirs again; then repeat the command with --yes."""


async def _state_budget(redis: Redis, config: Config) -> None:
    from stream.storage.ledger import Ledger

    await Ledger.of(redis, config).kept_under(config.ledger_policy)  # which names the unit of the budget
    await _shared(redis, config).state_budget(config.privacy.ledger_budget)


command = typer.Typer(
    help="Show and adopt the ledger of budgets. Never publish what these commands print.", no_args_is_help=True
)


@command.command("show")
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the number of users charged and the sum of charges in each ledger period."""
    settings = load_to_release(choose_config(config))
    from stream.storage.shared_ledger import retirement_held_by
    from stream.windows import utc_text

    totals, retired, feeds = asked(settings, lambda redis: _totals(redis, settings))
    if retired is not None:
        typer.echo(f"Periods that began before {utc_text(retired)} are retired: their charges are deleted.", err=True)
    if feeds:
        typer.echo(f"Charges of all feeds that share ledger '{settings.shared_ledger}': {', '.join(feeds)}.", err=True)
        typer.echo(f"As to old periods: {retirement_held_by(feeds)}.", err=True)
    if as_json:
        typer.echo(json.dumps(totals))
        return
    typer.secho("Inside the trust boundary: do not publish.", err=True, fg=typer.colors.YELLOW)
    unit, per_one = settings.privacy.ledger_unit
    symbol = {"micro_epsilon": "ε", "nano_rho": "ρ"}[unit]
    for period, row in totals.items():
        typer.echo(f"{period}  {row['users']:>8} users  sum of charges {row[unit] / per_one:.6f} {symbol}")


@command.command("adopt")
def adopt(
    config: ConfigFile = None,
    since: Annotated[
        str | None,
        typer.Option(help="First period to release, named by a local date or RFC 3339 time in it. Default: now."),
    ] = None,
    no_other_ledger: Annotated[
        bool,
        typer.Option("--no-other-ledger", help="I know that no other ledger released anything about these periods."),
    ] = False,
) -> None:
    """Release windows of periods that began before this ledger was born. First run it without options and read its
    text."""
    settings = load_to_release(choose_config(config))
    from stream.windows import utc_text

    try:
        moment = int(time.time()) if since is None else _moment(settings, since)
        start = settings.slotting.period_of(moment).begun  # of a period, or of a block of a horizon
    except (ValueError, OverflowError, OSError):
        stop(f"--since {since!r} is not a time; write a date like 2017-03-21 or 2017-03-21T07:00")
    if not no_other_ledger:
        stop(f"Feed '{settings.feed.name}', periods from {utc_text(start)} on.\n{_ADOPTING}")
    birth = asked(settings, lambda redis: _adopt(redis, settings, start))
    typer.echo(f"The ledger of feed '{settings.feed.name}' releases windows of periods from {utc_text(birth)} on.")


@command.command("retry")
def retry(
    window: Annotated[
        str | None, typer.Argument(help="Start of a window that was set aside: an RFC 3339 time. Default: list them.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Close a window again that was set aside, unless a later one was planned since; without WINDOW, list what was set
    aside."""
    settings = load_to_release(choose_config(config))
    from stream.storage.release_store import ReleaseStore
    from stream.windows import utc_text

    aside = {
        utc_text(slot): (slot, reason)
        for slot, reason in asked(settings, lambda redis: ReleaseStore.of(redis, settings).reasons()).items()
    }
    if window is None:
        _list(aside, as_json)
        return
    try:
        start = _moment(settings, window)
        begins = utc_text(start)
    except (ValueError, OverflowError):
        stop(f"{window!r} is no time; write one like 2017-03-21T12:00:00Z")
    taken = begins in aside and asked(settings, lambda redis: ReleaseStore.of(redis, settings).take_up(start))
    if not taken:
        known = ", ".join(aside) or "none"
        stop(
            f"no window that begins at {window} was set aside, or its period is retired; set aside are: {known}", FAILED
        )
    typer.echo(f"A worker of feed '{settings.feed.name}' closes window {begins} again. Look at its log.")


def _list(aside: dict[str, tuple[int, str]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({window: reason for window, (_, reason) in aside.items()}))
        return
    typer.secho("Inside the trust boundary: do not publish.", err=True, fg=typer.colors.YELLOW)
    for window, (_, reason) in aside.items():
        typer.echo(f"{window}  {reason}")


@command.command("leave")
def leave(
    feed: Annotated[str, typer.Argument(help="Name of a feed that shares the configured ledger.")],
    config: ConfigFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="I stopped every worker of this feed.")] = False,
) -> None:
    """Let a feed leave its shared ledger, for example one that was given up. First run it without --yes and read its
    text."""
    settings = load_to_release(choose_config(config))
    _require_shared(settings)
    if not yes:
        stop(f"Feed '{feed}' of ledger '{settings.shared_ledger}'.\n{_LEAVING}")
    asked(settings, lambda redis: _shared(redis, settings).leave(feed))
    typer.echo(f"Feed '{feed}' left ledger '{settings.shared_ledger}'.")


@command.command("budget")
def budget(
    config: ConfigFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="No worker of this feed runs with a lower budget.")] = False,
) -> None:
    """State the configured budget to the feeds of a shared ledger, also a higher one. First run it without --yes and
    read its text."""
    settings = load_to_release(choose_config(config))

    (_, per_one), given = settings.privacy.ledger_unit, settings.privacy.ledger_budget
    _require_shared(settings)
    if not yes:
        stop(
            f"Feed '{settings.feed.name}' of ledger '{settings.shared_ledger}', budget {given / per_one:g}.\n{_RAISING}"
        )
    asked(settings, lambda redis: _state_budget(redis, settings))
    typer.echo(
        f"Feed '{settings.feed.name}' states the budget {given / per_one:g} to ledger '{settings.shared_ledger}'."
    )
