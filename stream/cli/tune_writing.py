"""Writes the configuration that ``hexveil tune`` chose. An old file stays until the new one reads as it should."""

from __future__ import annotations

import os
import secrets
import shutil
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer

from stream.cli.options import load_to_release, stop
from stream.config import Chosen, Config, ConfigError
from stream.config.loading import origins
from stream.config.rewriting import rewritten, toml
from stream.config.section import parse_duration
from stream.evaluation.tuning import Trial, terms_of
from stream.evaluation.wants import DropWant, Want


def check_target(path: Path, *, force: bool) -> None:
    """Exit 2 if ``path`` cannot be written, before anything is computed for it."""
    if path.exists() and not force:
        stop(f"{path} exists; choose another name or pass --force")
    if path.exists() and not path.is_file():
        stop(f"{path} is not a file; choose another name")
    if not os.access(path.resolve().parent, os.W_OK):
        stop(f"{path}: name a file in a folder that you may write to")
    chosen = {("privacy", name) for name in ("epsilon", "budget", "windows")}
    overriding = [name for key, name in origins(Config, os.environ).items() if key in chosen]
    if overriding:
        stop(f"{', '.join(overriding)} would override what {path} is to say; unset it, or leave out --write")


def keys_for(chosen: Trial, config: Config, source: str, most: float) -> dict[str, Any]:
    """Dotted keys that turn ``source``, the configuration's text, into the choice. ``most``: ε of a period.

    Keys are compared with the text alone, because ``config`` may have others from the environment.
    """
    changes = {
        key: value
        for key, value in chosen.setting.keys().items()
        if value is not None and not _says(source, config, key, value)
    }
    return terms_of(config, chosen, most) | changes


def _says(source: str, config: Config, key: str, value: Any) -> bool:
    """Whether the text has ``value`` at ``key``, or by default."""
    section, _, name = key.partition(".")
    default = type(getattr(config, section)).model_fields[name].default
    given = tomllib.loads(source).get(section, {}).get(name, default)
    if isinstance(value, timedelta) and isinstance(given, str):
        try:
            given = parse_duration(given)
        except ValueError:
            return False
    return bool((tuple(given) if isinstance(given, list) else given) == value)


def write_chosen(
    path: Path, source: str, keys: Mapping[str, Any], expected: Mapping[str, Any], want: Want | DropWant, *, force: bool
) -> None:
    """Write ``source`` with other values at ``keys``. Exit 2 with the reason, and with any old file as it was, if it
    cannot be written, is no valid configuration, or is not read with the ``expected`` values of dotted keys. Never
    replaces a file without ``force``.
    """
    try:
        _write(path.resolve(), rewritten(source, keys, "by hexveil tune"), expected, force=force)
    except FileExistsError:
        stop(f"{path} exists; choose another name or pass --force")
    except ConfigError as error:
        stop(f"{path} is not written. {error}")
    except OSError as error:
        stop(f"{path}: {error.strerror or error}; name a file in a folder that you may write to")
    typer.echo(
        f"{path} written for {want}. What it says follows from the recording, so treat it as public. Check feed.name "
        f"and the paths in it, then run: hexveil check --config {path}",
        err=True,
    )


def _write(path: Path, text: str, expected: Mapping[str, Any], *, force: bool) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        _verify(draft, path, expected)
        if not force:
            os.link(draft, path)
            return
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _verify(draft: Path, path: Path, expected: Mapping[str, Any]) -> None:
    """Raises :class:`ConfigError` unless the draft of ``path`` is read with the ``expected`` values of dotted keys."""
    try:
        loaded = load_to_release(Chosen(draft, path.parent, "written by hexveil tune"))
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(draft), str(path))) from None
    wrong = [
        f"{key} = {toml(_value_at(loaded, key))} instead of {toml(value)}"
        for key, value in expected.items()
        if _value_at(loaded, key) != value
    ]
    if wrong:
        raise ConfigError(f"It would be read as {'; '.join(wrong)}; unset the variables HEXVEIL_… that override it")


def _value_at(config: Config, key: str) -> Any:
    """Value of a dotted key, as the configuration file gives it; None in a section that there is not."""
    section, _, name = key.partition(".")
    values = getattr(config, section)
    return None if values is None else values.model_dump(by_alias=True)[name]
