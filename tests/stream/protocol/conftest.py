"""Tests that spent budgets are kept run on every supported server of this machine."""

from tests.support.city import city
from tests.support.redis_servers import pytest_generate_tests

__all__ = ["city", "pytest_generate_tests"]
