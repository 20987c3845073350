"""``hexveil ledger``: what was spent, for the operator (inside the trust boundary)."""

from __future__ import annotations

import asyncio
import json

import typer
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stream.cli.options import FAILED, UNREACHABLE, AsJson, ConfigFile, choose_config, read_config, stop
from stream.config import Config


async def _totals(config: Config) -> dict[str, dict[str, float]]:
    from stream.storage.ledger import Ledger

    redis = Redis.from_url(config.redis.url)
    try:
        ledger = Ledger(redis, config.feed.name)
        await ledger.kept_under(config.ledger_policy)
        found = {period: await ledger.total(period) for period in await ledger.periods()}
    finally:
        await redis.aclose()
    unit, _ = config.privacy.ledger_unit
    return {period: {"users": users, unit: total} for period, (users, total) in found.items()}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    ledger = typer.Typer(help="The budget ledger. Never publish what these commands print.", no_args_is_help=True)
    app.add_typer(ledger, name="ledger")

    @ledger.callback()
    def group() -> None:
        """The budget ledger."""

    @ledger.command("show")
    def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
        """Users charged and the sum of charges, per ledger period."""
        settings = read_config(choose_config(config))
        from stream.storage.ledger import LedgerError

        try:
            totals = asyncio.run(_totals(settings))
        except LedgerError as error:
            stop(str(error), FAILED)
        except (RedisError, OSError) as error:
            stop(f"Redis at {settings.redis.url} does not answer: {error}", UNREACHABLE)
        if as_json:
            typer.echo(json.dumps(totals))
            return
        typer.secho("Inside the trust boundary: do not publish.", err=True, fg=typer.colors.YELLOW)
        unit, per_one = settings.privacy.ledger_unit
        symbol = {"micro_epsilon": "ε", "nano_rho": "ρ"}[unit]
        for period, row in totals.items():
            typer.echo(f"{period}  {row['users']:>8} users  sum of charges {row[unit] / per_one:.6f} {symbol}")
