"""``hexveil key``: the key with which close markers are signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream.cli.options import FAILED, ConfigFile, asked, choose_config, load_to_release, stop
from stream.config import Config

if TYPE_CHECKING:
    from redis.asyncio import Redis

command = typer.Typer(help="Make and replace keys.", no_args_is_help=True)


@command.command("signing")
def signing(
    file: Annotated[Path, typer.Argument(help="File of the private key; the public key gets the suffix .pub.")],
    renew: Annotated[bool, typer.Option(help="Replace the key in the file by one that it endorses.")] = False,
) -> None:
    """Make a key for close markers, or replace it. Copy it to every worker, and give readers the public key."""
    from stream.messages.chain import Signer, new_signer

    if not renew and file.exists():
        stop(f"{file} exists; with --renew its key endorses a new one and is replaced")
    try:
        signer = Signer.load(file).renewed() if renew else new_signer()
        signer.write(file)
    except OSError as error:
        stop(f"{file} cannot be written ({error.strerror}); name a file that you may write")
    typer.echo(f"{file}: {signer.public}")


@command.command("signing-lost")
def signing_lost(config: ConfigFile = None) -> None:
    """Let the next close marker be signed by a key that the last one did not endorse. Every reader will see the
    break."""
    settings = load_to_release(choose_config(config))
    forgotten = asked(settings, lambda redis: _forget_signer(redis, settings))
    if not forgotten:
        stop("the last close marker was not signed, or a window was committed meanwhile; nothing was changed", FAILED)
    typer.echo("The next close marker may be signed by any key, or by none.")


async def _forget_signer(redis: Redis, config: Config) -> bool:
    from stream.messages.chain import decode_link, encode_link
    from stream.storage.release_store import ReleaseStore

    store = ReleaseStore.of(redis, config)
    stored = (await store.carried()).link
    link = decode_link(stored)
    return link is not None and bool(link.signer) and await store.replace_link(stored, encode_link(link.unsigned()))
