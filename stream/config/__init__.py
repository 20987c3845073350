"""TOML and environment become one validated, immutable configuration."""

from stream.config.deployment import Config, ConfigError
from stream.config.loading import load_config

__all__ = ["Config", "ConfigError", "load_config"]
