"""Tests of state, ledger and closing run against two servers: the embedded one, and the ``redis-server`` on PATH.

A folder asks for both by a ``conftest.py`` that imports :func:`pytest_generate_tests` from here.
"""

from __future__ import annotations

import pytest

EMBEDDED, ON_PATH = "embedded", "on PATH"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that talks to a Redis, once for each server."""
    if "redis_binary" in metafunc.fixturenames:
        metafunc.parametrize("redis_binary", [EMBEDDED, ON_PATH], indirect=True, scope="session")
