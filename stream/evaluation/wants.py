"""What an operator wants of a map, in one sentence: how near its number must be, or how soon it must show a jam."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stream.config.value import SPEED_UNIT

EXAMPLE = "±5 {unit} for 80 % of events"
EXAMPLE_OF_A_DROP = "see a drop of 8 km/h within 30 min in 80 % of cells"
_NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
_GRAMMAR = re.compile(
    rf"\s*(?:±|\+/?-)\s*{_NUMBER}\s*(\S+?)\s+for\s+{_NUMBER}\s*(?:%|percent)\s+of\s+events\s*", re.IGNORECASE
)
_DROP = re.compile(
    rf"\s*see\s+a\s+drop\s+of\s+{_NUMBER}\s*km/h\s+within\s+{_NUMBER}\s*min\s+in\s+{_NUMBER}\s*(?:%|percent)\s+of\s+cells\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Want:
    """The 95 % interval of the leading number reaches at most ``half_width`` to either side, in ``unit``, in cells
    that have at least ``share`` (above 0, at most 1) of all events.
    """

    half_width: float
    share: float
    unit: str = SPEED_UNIT

    @classmethod
    def parse(cls, text: str, width: float, unit: str = SPEED_UNIT) -> Want:
        """``"±5 km/h for 80 % of events"``; ``+-`` and ``+/-`` are read as ``±``, ``percent`` as ``%``.

        ``width``: U in ``unit``; every value lies within U/2 of the middle of its range, so less is wanted. Raises
        :class:`ValueError` with the wrong value and an example.
        """
        match, example = _GRAMMAR.fullmatch(text), EXAMPLE.format(unit=unit)
        if match is None or match[2].lower() != unit.lower():
            other = f" or {EXAMPLE_OF_A_DROP!r}" if unit == SPEED_UNIT else ""
            raise ValueError(f"{text!r} is not a want; write one like {example!r}{other}")
        half_width, percent = float(match[1]), float(match[3])
        if not 0 < half_width < width / 2:
            raise ValueError(
                f"±{half_width:g} {unit} in {text!r} must be above 0 and below {width / 2:g}, half of the range from "
                f"value.lower to value.upper; write one like {example!r}"
            )
        if not 0 < percent <= 100:
            raise ValueError(f"{percent:g} % in {text!r} must be above 0 and at most 100; write one like {example!r}")
        return cls(half_width, percent / 100, unit)

    def __str__(self) -> str:
        return f"±{self.half_width:g} {self.unit} for {100 * self.share:g} % of events"


@dataclass(frozen=True)
class DropWant:
    """So many ``minutes`` after traffic slows down by ``drop`` km/h, at least ``share`` (above 0, at most 1) of the
    cells show it: the 95 % interval on the screen lies below the mean speed that they would have had.
    """

    drop: float
    minutes: float
    share: float

    @classmethod
    def parse(cls, text: str, upper: float) -> DropWant | None:
        """``"see a drop of 8 km/h within 30 min in 80 % of cells"``; None for a text that speaks of something else.

        ``upper``: U in km/h. Raises :class:`ValueError` with the wrong value and an example.
        """
        match = _DROP.fullmatch(text)
        if match is None:
            return None
        drop, minutes, percent = (float(number) for number in match.groups())
        if not 0 < drop < upper:
            raise ValueError(
                f"a drop of {drop:g} km/h must be above 0 and below value.upper, {upper:g}; write one like "
                f"{EXAMPLE_OF_A_DROP!r}"
            )
        if not 0 < minutes <= 60:
            raise ValueError(
                f"{minutes:g} min must be above 0 and at most 60, the length of a planted incident; write one like "
                f"{EXAMPLE_OF_A_DROP!r}"
            )
        if not 0 < percent <= 100:
            raise ValueError(
                f"{percent:g} % of cells must be above 0 and at most 100; write one like {EXAMPLE_OF_A_DROP!r}"
            )
        return cls(drop, minutes, percent / 100)

    def __str__(self) -> str:
        return f"see a drop of {self.drop:g} km/h within {self.minutes:g} min in {100 * self.share:g} % of cells"
