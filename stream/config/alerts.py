"""Sections ``[[public.alerts]]`` and ``[public.webhook]``: rules on released means, and who is told of their alerts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import h3
from pydantic import AfterValidator, Field

from stream.config.section import BoundingBox, Section

MOST_WINDOWS = 12
"""Most consecutive windows of a rule: all of them are judged anew with every window."""


def _cell(text: str) -> str:
    """The index as messages write it; H3 itself would also read "0x" before it, spaces and underscores in it."""
    index: str = h3.int_to_str(h3.str_to_int(text)) if h3.is_valid_cell(text) else ""
    if not index or text.lower() != index:
        raise ValueError(f"{text[:20]!r} is no H3 cell; write indexes like '86489e347ffffff'")
    return index


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.username is not None or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError(
            "it is no http or https address without login; write one like 'https://desk.example.org/alerts'"
        )
    return url


class AlertRule(Section):
    """What is claimed of the exact mean of a cell in each of ``windows`` consecutive windows, and how often by mistake.

    Exactly one of ``below``, ``above`` (the mean is beyond it), ``slower_km_h`` and ``slower_percent`` (the mean is
    further below usual than that). ``false_alarms_per_day``: bound on the expected number of alerts a day whose claim
    does not hold, over all cells of the rule together. ``cells`` or ``area``: where; default everywhere.
    """

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,31}$", description="a name of small letters, digits and hyphens, like 'jam'"
    )
    below: float | None = None
    above: float | None = None
    slower_km_h: float | None = Field(default=None, gt=0, le=1000)
    slower_percent: float | None = Field(default=None, gt=0, lt=100)
    windows: int = Field(default=1, ge=1, le=MOST_WINDOWS)
    false_alarms_per_day: float = Field(gt=0, le=1000)
    cells: tuple[Annotated[str, AfterValidator(_cell)], ...] = ()
    area: BoundingBox | None = None

    @property
    def relative(self) -> bool:
        """Whether the rule compares with usual."""
        return self.below is None and self.above is None

    def _problems(self) -> Iterator[str]:
        given = [key for key in ("below", "above", "slower_km_h", "slower_percent") if getattr(self, key) is not None]
        if len(given) != 1:
            yield (
                f"rule {self.name} gives {given or 'no condition'}; give one of below, above, slower_km_h, "
                "slower_percent"
            )
        if self.cells and self.area:
            yield f"rule {self.name} gives cells and area; give one of them, or neither for all cells"


class WebhookConfig(Section):
    """Where alerts are posted to, and the file with the secret that signs them."""

    url: Annotated[str, AfterValidator(_address)]
    secret_file: Path
