"""Tests that spent budgets are kept run on every supported server of this machine."""

from tests.support.redis_servers import pytest_generate_tests

__all__ = ["pytest_generate_tests"]
