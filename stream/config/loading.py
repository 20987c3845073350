"""TOML and environment into one validated :class:`Config`; every error names the key and the remedy."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from stream.config.deployment import Config, ConfigError


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
        raise ConfigError(f"{path}: not TOML: {error}") from None
    for key, value in overrides.items():
        section = data
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    try:
        return Config(**data)
    except SettingsError as error:
        raise ConfigError(f"environment: {error}; set single keys, like HEXVEIL_PRIVACY__EPSILON=1.5") from None
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(whole file)'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise ConfigError(f"{path}: {len(lines)} problem(s)\n" + "\n".join(lines)) from None
