"""The mode of transport of a route of a GTFS schedule. Pure.

Source: GTFS Schedule Reference, routes.txt, ``route_type``, and Google's extended route types (100 to 1702).
"""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """A mode of transport."""

    TRAM = "tram"
    METRO = "metro"
    RAIL = "rail"
    BUS = "bus"
    COACH = "coach"
    TROLLEYBUS = "trolleybus"
    FERRY = "ferry"
    LIFT = "lift"
    OTHER = "other"


_BASIC = (Mode.TRAM, Mode.METRO, Mode.RAIL, Mode.BUS, Mode.FERRY, Mode.TRAM, Mode.LIFT, Mode.LIFT)
"""Modes by ``route_type`` 0 to 7; a cable tram (5) is a tram, an aerial lift (6) and a funicular (7) a lift."""
_BEYOND = {11: Mode.TROLLEYBUS, 12: Mode.METRO}
_EXTENDED = {
    1: Mode.RAIL,
    2: Mode.COACH,
    3: Mode.RAIL,
    4: Mode.METRO,
    5: Mode.METRO,
    6: Mode.METRO,
    7: Mode.BUS,
    8: Mode.TROLLEYBUS,
    9: Mode.TRAM,
    10: Mode.FERRY,
    12: Mode.FERRY,
    13: Mode.LIFT,
    14: Mode.LIFT,
}
"""Modes by the hundreds of an extended ``route_type``."""


def mode_of(route_type: str) -> Mode:
    """The mode of a ``route_type`` as it is written; :attr:`Mode.OTHER` for one without a mode of its own, and for
    none."""
    if not (route_type.isascii() and route_type.isdecimal() and len(route_type) <= 4):
        return Mode.OTHER
    number = int(route_type)
    if number < len(_BASIC):
        return _BASIC[number]
    return _BEYOND.get(number) or _EXTENDED.get(number // 100, Mode.OTHER)
