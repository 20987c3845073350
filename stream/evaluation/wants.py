"""What an operator wants of a map, in one sentence: how near the leading number must be, or how soon it must show a
jam."""

from __future__ import annotations

import re
from dataclasses import dataclass

EXAMPLE = "±5 km/h for 80 % of events"
EXAMPLE_OF_A_DROP = "see a drop of 8 km/h within 30 min in 80 % of cells"
_NUMBER = r"(\d{1,6}(?:\.\d{1,6})?)"
_GRAMMAR = re.compile(
    rf"\s*(?:±|\+/?-)\s*{_NUMBER}\s*km/h\s+for\s+{_NUMBER}\s*(?:%|percent)\s+of\s+events\s*", re.IGNORECASE
)
_DROP = re.compile(
    rf"\s*see\s+a\s+drop\s+of\s+{_NUMBER}\s*km/h\s+within\s+{_NUMBER}\s*min\s+in\s+{_NUMBER}\s*(?:%|percent)\s+of\s+cells\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Want:
    """The 95 % interval of the leading number reaches at most ``half_width`` km/h to either side, in cells that have at
    least ``share`` (above 0, at most 1) of all events.
    """

    half_width: float
    share: float

    @classmethod
    def parse(cls, text: str, upper: float) -> Want:
        """``"±5 km/h for 80 % of events"``; ``+-`` and ``+/-`` are read as ``±``, ``percent`` as ``%``.

        ``upper``: U in km/h; every speed lies within U/2 of the middle of [0, U], so less is wanted. Raises
        :class:`ValueError` with the wrong value and an example.
        """
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a want; write one like {EXAMPLE!r} or {EXAMPLE_OF_A_DROP!r}")
        half_width, percent = float(match[1]), float(match[2])
        if not 0 < half_width < upper / 2:
            raise ValueError(
                f"±{half_width:g} km/h in {text!r} must be above 0 and below {upper / 2:g}, half of speed.upper_bound; "
                "write one "
                f"like {EXAMPLE!r}"
            )
        if not 0 < percent <= 100:
            raise ValueError(f"{percent:g} % in {text!r} must be above 0 and at most 100; write one like {EXAMPLE!r}")
        return cls(half_width, percent / 100)

    def __str__(self) -> str:
        return f"±{self.half_width:g} km/h for {100 * self.share:g} % of events"


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
                f"a drop of {drop:g} km/h must be above 0 and below speed.upper_bound, {upper:g}; write one like "
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
