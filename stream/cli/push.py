"""``hexveil push``: takes events by HTTP from vehicles and small systems, and sends them to Kafka."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.options import ConfigFile, choose_config, secret_text, stop, stopped_by_signals
from stream.config import Config, load_config
from stream.local.server import LOOPBACK
from stream.sources.pushed import PATH, PushAllowance, PushIntake, application, serve_push

_SHORTEST_TOKEN = 20


def command(
    token_file: Annotated[
        Path, typer.Option(help="File with the token that senders give; at least 20 characters, and nothing else.")
    ],
    port: Annotated[
        int, typer.Option(min=1, max=65_535, help="Port of 127.0.0.1; put a proxy with TLS before it.")
    ] = 8090,
    rate: Annotated[float, typer.Option(min=1, max=100_000, help="Most events a second, of all senders.")] = 1000.0,
    config: ConfigFile = None,
) -> None:
    """Take events by HTTP (POST /v1/events) and send them to the feed's Kafka topic. For small fleets."""
    try:
        settings = load_config(choose_config(config))
        token = _token(token_file)
    except ValueError as error:
        stop(error)
    try:
        accepted = asyncio.run(_run(settings, token, port, rate))
    except OSError as error:
        stop(f"port {port}: {error.strerror or error}; choose another one")
    typer.echo(f"{accepted} events to {settings.feed.topic}")


async def _run(settings: Config, token: str, port: int, rate: float) -> int:
    stopping = stopped_by_signals()
    intake = PushIntake(settings)
    await intake.open()
    try:
        typer.echo(f"Events: POST http://{LOOPBACK}:{port}{PATH}", err=True)
        await serve_push(application(intake, token, PushAllowance(rate)), port, stopping)
    finally:
        await intake.close()
    return intake.accepted


def _token(path: Path) -> str:
    """The content of the token's file. Raises :class:`ValueError`, which never shows it."""
    token = secret_text("--token-file", path)
    if len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError(
            f"--token-file {path}: a token has at least {_SHORTEST_TOKEN} ASCII characters and no spaces; make one: "
            "openssl rand -hex 32"
        )
    return token
