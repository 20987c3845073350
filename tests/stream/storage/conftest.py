"""Tests that spent budgets are kept run on every server that Hexveil supports and this machine has."""

from tests.support.redis_servers import pytest_generate_tests

__all__ = ["pytest_generate_tests"]
