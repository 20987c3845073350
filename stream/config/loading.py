"""Reads TOML and environment into one validated :class:`Config`; every error names the key and the remedy."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from stream.config.deployment import Config, ConfigError
from stream.config.environment import origins, override, unusable
from stream.config.problems import keys, problems
from stream.config.search import Chosen


def load_config(path: str | os.PathLike[str] | Chosen, **overrides: Any) -> Config:
    """Read ``path`` with environment overrides; ``overrides`` are dotted keys (``feed.format="capmetro"``).

    The environment has precedence over overrides, and overrides over the file. Relative paths in the file are relative
    to its folder (or to ``base`` of the chosen configuration), those in the environment and in overrides to the working
    folder.

    Raises :class:`ConfigError`, which names every wrong key, the value found and what to write instead.
    """
    path, base = (path.file, path.base) if isinstance(path, Chosen) else (Path(path), Path(path).parent)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; 'hexveil init {path}' creates one") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, an endless number, or nested too deeply
        raise ConfigError(
            f"{path}: not valid TOML: {error}; correct it there, or create a file with 'hexveil init'"
        ) from None
    _anchor(data, base)
    for key, value in overrides.items():
        section = data
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    wrong = unusable(Config, os.environ)
    if wrong:
        raise ConfigError(f"environment: {len(wrong)} problem(s)\n" + "\n".join(f"  {line}" for line in wrong))
    override(data, Config, os.environ)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [f"  {line}" for line in problems(error, Config, origins(Config, os.environ))]
        raise ConfigError(f"{path}: {len(lines)} problem(s)\n" + "\n".join(lines)) from None


def with_section(config: Config, name: str, given: Mapping[str, Any]) -> Config:
    """``config`` with the keys ``given`` as its section ``name``. Raises :class:`ConfigError`, as :func:`load_config`
    does."""
    try:
        section = type(getattr(config, name)).model_validate(given)
    except ValidationError as error:
        raise ConfigError("; ".join(problems(error, Config, {}, (name,)))) from None
    return config.model_copy(update={name: section})


def _anchor(data: dict[str, Any], base: Path) -> None:
    """Put ``base`` before every relative path in the file's ``data``, and before relative paths that are defaults."""
    for (*sections, key), field in keys(Config):
        if Path not in (field.annotation, *get_args(field.annotation)):
            continue
        table: Any = data
        for section in sections:
            table = table.get(section) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value := table.get(key, field.default), str | Path):
            table[key] = str(base / value)
