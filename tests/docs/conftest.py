"""Every test here draws from a tape of its own."""

from __future__ import annotations

from tests.support.tapes import recorded_noise

__all__ = ["recorded_noise"]
