"""Snapshots of three buses that drive north at 13.3 km/h, some of whose clocks are ahead."""

from collections.abc import Callable, Sequence

import pytest

from tests.stream.sources.gtfs import START, Vehicle, snapshot_bytes

EVERY_S, NORTH = 15, 0.0005
"""Seconds and degrees between two snapshots: 55.6 m, 13.3 km/h."""
KMH = pytest.approx(13.34, abs=0.1)


def fixes(step: int, ahead: dict[str, int]) -> list[Vehicle]:
    """Three buses; ``ahead``: by how many seconds the timestamp of a bus is too late."""
    clock = START + EVERY_S * step
    return [
        (name, clock + ahead.get(name, 0), 28.6 + NORTH * step, 77.2 + k / 100, None) for k, name in enumerate("abc")
    ]


def body_at(step: int, ahead: dict[str, int], header_ahead: int = 0) -> bytes:
    return snapshot_bytes(fixes(step, ahead), START + EVERY_S * step + header_ahead)


def skewed_at(wrong: Sequence[int], ahead: int, names: str = "abc") -> Callable[[int], bytes]:
    """Snapshots of which some are ahead: header and all vehicles, or if only some vehicles are named, these alone."""

    def body(step: int) -> bytes:
        if step not in wrong:
            return body_at(step, {})
        return body_at(step, dict.fromkeys(names, ahead), ahead if names == "abc" else 0)

    return body
