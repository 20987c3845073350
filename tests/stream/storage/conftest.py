"""Every test draws from a tape of its own; tests that spent budgets are kept run on every supported server of this
machine."""

from tests.support.redis_servers import pytest_generate_tests
from tests.support.tapes import recorded_noise

__all__ = ["pytest_generate_tests", "recorded_noise"]
