"""``hexveil ledger``: shows the spent budgets to the operator (inside the trust boundary), and adopts periods."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from redis.exceptions import RedisError

from stream.cli.options import FAILED, UNREACHABLE, USAGE, AsJson, ConfigFile, choose_config, read_config, stop
from stream.config import Config
from stream.config.addresses import redacted
from stream.storage.client import redis_client


async def _totals(config: Config) -> dict[str, dict[str, float]]:
    from stream.storage.ledger import Ledger

    redis = redis_client(config.redis)
    try:
        ledger = Ledger(redis, config.feed.name)
        await ledger.kept_under(config.ledger_policy)
        totals = {period: await ledger.total(period) for period in await ledger.periods()}
    finally:
        await redis.aclose()
    unit, _ = config.privacy.ledger_unit
    return {period: {"users": users, unit: total} for period, (users, total) in totals.items()}


_ADOPTING = """\
A ledger releases windows of periods that begin after it was born. It cannot know whether another ledger (an older name of
this feed, another Redis, a ledger that was lost) granted the budgets of earlier periods. If you adopt periods, every user gets
their whole budget in each of them. Do it only if no other ledger ever released anything about these users in these periods,
because the feed is new or the recording was never released. Then repeat the command with --no-other-ledger."""


def _period_start(config: Config, since: str | None) -> int:
    """Start of the ledger period that holds ``since`` (local date or RFC 3339 time; None: now). Raises ValueError."""
    moment = datetime.fromtimestamp(time.time()) if since is None else datetime.fromisoformat(since)
    if since is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(config.feed.timezone))
    return config.slotting.period_of(int(moment.timestamp())).start


async def _adopt(config: Config, since: int) -> int:
    from stream.protocol.ledger_check import verify_ledger
    from stream.storage.ledger import Ledger

    redis = redis_client(config.redis)
    try:
        await verify_ledger(config, redis)
        return await Ledger(redis, config.feed.name).adopt(since)
    finally:
        await redis.aclose()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    ledger = typer.Typer(
        help="Show and adopt the ledger of budgets. Never publish what these commands print.", no_args_is_help=True
    )
    app.add_typer(ledger, name="ledger")
    ledger.callback()(group)
    ledger.command("show")(show)
    ledger.command("adopt")(adopt)


def group() -> None:
    """Show and adopt the ledger of budgets. Never publish what these commands print."""


def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the number of users charged and the sum of charges in each ledger period."""
    settings = read_config(choose_config(config))
    from stream.storage.ledger import LedgerError

    try:
        totals = asyncio.run(_totals(settings))
    except LedgerError as error:
        stop(str(error), FAILED)
    except (RedisError, OSError) as error:
        stop(f"Redis at {redacted(settings.redis.url)} does not answer: {error}", UNREACHABLE)
    if as_json:
        typer.echo(json.dumps(totals))
        return
    typer.secho("Inside the trust boundary: do not publish.", err=True, fg=typer.colors.YELLOW)
    unit, per_one = settings.privacy.ledger_unit
    symbol = {"micro_epsilon": "ε", "nano_rho": "ρ"}[unit]
    for period, row in totals.items():
        typer.echo(f"{period}  {row['users']:>8} users  sum of charges {row[unit] / per_one:.6f} {symbol}")


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
    """Release windows of periods that began before this ledger was born. First run it without options and read its text."""
    settings = read_config(choose_config(config))
    from aiokafka.errors import KafkaError

    from stream.storage.ledger import LedgerError
    from stream.windows import utc_text

    try:
        start = _period_start(settings, since)
    except (ValueError, OverflowError, OSError):
        stop(f"--since {since!r} is not a time; write a date like 2017-03-21 or 2017-03-21T07:00", USAGE)
    if not no_other_ledger:
        stop(f"Feed '{settings.feed.name}', periods from {utc_text(start)} on.\n{_ADOPTING}", USAGE)
    try:
        birth = asyncio.run(_adopt(settings, start))
    except LedgerError as error:
        stop(str(error), FAILED)
    except (RedisError, KafkaError, OSError) as error:
        stop(f"a server does not answer: {error}; run 'hexveil doctor'", UNREACHABLE)
    typer.echo(f"The ledger of feed '{settings.feed.name}' releases windows of periods from {utc_text(birth)} on.")
