"""Two servers for tests of state, ledger and closing: the embedded one, and the ``redis-server`` on PATH.

A folder asks for them by a ``conftest.py`` that imports :func:`pytest_generate_tests` from here. Tests of what differs
between servers (scripts, the append-only file, versions) are marked ``every_server``; ``--all`` runs the others on
both, too.
"""

import pytest

EMBEDDED, ON_PATH = "embedded", "on PATH"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that talks to a Redis, once for each server that it is meant for."""
    if "redis_binary" in metafunc.fixturenames:
        both = metafunc.config.getoption("--all") or metafunc.definition.get_closest_marker("every_server")
        servers = [EMBEDDED, ON_PATH] if both else [EMBEDDED]
        metafunc.parametrize("redis_binary", servers, indirect=True, scope="session")
