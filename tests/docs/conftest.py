"""Every test here draws from a tape of its own."""

from tests.support.tapes import recorded_noise

__all__ = ["recorded_noise"]
