"""The hourly settings of benchmarks and of tests are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.hourly import SETTINGS, hourly_config, hourly_text
from stream.config import load_config


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_hourly_file_says_what_the_hourly_configuration_is(tmp_path: Path, name: str) -> None:
    file = tmp_path / "hexveil.toml"
    file.write_text(hourly_text(name), encoding="utf-8")
    key: dict[str, Any] = {"privacy.user_key_file": str(tmp_path / "key")}
    assert load_config(file, **key) == hourly_config(name, **key)
