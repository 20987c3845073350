"""Reads TOML and environment into one validated, immutable configuration."""

from stream.config.deployment import Config, ConfigError
from stream.config.loading import load_config
from stream.config.search import Chosen, find_config, template

__all__ = ["Chosen", "Config", "ConfigError", "find_config", "load_config", "template"]
