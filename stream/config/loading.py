"""TOML and environment into one validated :class:`Config`; every error names the key and the remedy."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stream.config.deployment import Config, ConfigError
from stream.config.environment import origins, unusable
from stream.config.problems import problems


def load_config(path: str | os.PathLike[str], **overrides: Any) -> Config:
    """Read ``path`` with environment overrides; ``overrides`` are dotted keys (``feed.format="capmetro"``) above both.

    Raises :class:`ConfigError` naming every bad key, what was found and what would be right.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; start from config/bus-fleet.toml or run 'hexveil init'") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}; correct it there, or start from 'hexveil init'") from None
    for key, value in overrides.items():
        section = data
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    wrong = unusable(Config, os.environ)
    if wrong:
        raise ConfigError(f"environment: {len(wrong)} problem(s)\n" + "\n".join(f"  {line}" for line in wrong))
    try:
        return Config(**data)
    except ValidationError as error:
        lines = [f"  {line}" for line in problems(error, Config, origins(Config, os.environ))]
        raise ConfigError(f"{path}: {len(lines)} problem(s)\n" + "\n".join(lines)) from None
