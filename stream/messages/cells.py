"""What readers take from a released cell's message, decoded once, and the leading estimate that they show first. Pure.

A message holds what was drawn and, under ``post_processed``, what models made of it. For each statistic the modelled
value leads, else the released one. It is chosen here and nowhere else, from the released message alone, so it costs no
budget. Beside it stand what is typical of the cell at this hour, as earlier releases have it, and the deviation of the
mean from that.

Under "participation" every cell of a public list is released, also where nobody was. A cell has no estimate where
nobody is estimated in it: where its released number of users is at most one standard deviation of its own noise. Of
empty cells one in eight exceeds that (12 %; Gaussian noise: 16 %). By the same rule a cell has no mean of moving
reports where none is estimated to move.
"""

import math
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import msgspec

from stream.config.value import SPEED_UNIT

RELEASED = "released"
"""``method`` of an estimate that no model made."""


class Number(msgspec.Struct, gc=False):
    """A released number with its 95 % interval; ``at_bound``: it crowds the bound of speeds."""

    value: float
    raw: float
    scale: float
    interval: tuple[float, float]
    unit: str
    at_bound: bool = False


class Estimate(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True):
    """A leading estimate, or what a model made of a statistic. ``interval``: 95 %; None where the model gives none.

    ``at_bound``: the released value crowds the bound of speeds, whatever a model made of it. ``clear_error``: of a
    deviation that noise does not explain, its error (:mod:`stream.serve.differences`).
    """

    value: float
    interval: tuple[float, float] | None = None
    unit: str
    method: str
    at_bound: bool = False
    clear_error: float | None = None


class Estimates(msgspec.Struct, gc=False, omit_defaults=True):
    """By statistic. What is typical and the deviation from it exist as what models made only."""

    mean: Estimate | None = None
    moving_mean: Estimate | None = None
    variance: Estimate | None = None
    p15: Estimate | None = None
    p50: Estimate | None = None
    p85: Estimate | None = None
    typical: Estimate | None = None
    deviation: Estimate | None = None


ESTIMATED = Estimates.__struct_fields__
"""Numbers of which a message may hold an estimate."""
_DRAWN = ESTIMATED[:6]


class Stretched(msgspec.Struct, gc=False):
    """The range of which a mean with residual clipping is a share, and the deviation of what clipping leaves open."""

    lower: float
    upper: float
    open: float


class Clipping(msgspec.Struct, gc=False):
    """A range of values, in their unit."""

    lower: float
    upper: float
    unit: str = SPEED_UNIT
    stretched: Stretched | None = None

    def of_shares(self, least: float) -> tuple[float, float]:
        """Lower end and width, at least ``least``, of the range of which a mean of noisy numbers is a share."""
        ends = self.stretched or self
        return ends.lower, max(ends.upper - ends.lower, least)


class Cell(msgspec.Struct, gc=False):
    """A released cell. ``events`` is absent where users are counted: weights "share" and "user"."""

    cell: str
    status: str
    users: int | Number
    relation: str = ""
    weight: str = ""
    accounting: str | None = None
    excludes: tuple[str, ...] = ()
    clipping: Clipping | None = None
    events: int | Number | None = None
    moving: int | Number | None = None
    mean: Number | None = None
    moving_mean: Number | None = None
    variance: Number | None = None
    p15: Number | None = None
    p50: Number | None = None
    p85: Number | None = None
    post_processed: Estimates | None = None

    @property
    def counted(self) -> int | Number:
        """The weight of the cell's mean: its events or, where only users are counted, its users."""
        return self.users if self.events is None else self.events

    @property
    def is_gaussian(self) -> bool:
        """Whether its noise is Gaussian, and not Laplace's."""
        return self.accounting == "zcdp"

    def deviation_of(self, number: Number) -> float:
        """Standard deviation of the noise of one of its numbers."""
        return number.scale * (1.0 if self.is_gaussian else math.sqrt(2.0))


_DECODER = msgspec.json.Decoder(Cell)


def cells_of(values: Iterable[bytes]) -> list[Cell]:
    """The cells of these messages."""
    return [_DECODER.decode(value) for value in values]


def estimates_of(cell: Cell) -> Estimates | None:
    """The leading estimates of a cell; None where it was not published, and where nobody is estimated."""
    if cell.status != "published" or not is_anybody(cell):
        return None
    leading = copy(cell.post_processed) if cell.post_processed else Estimates()
    for name in _DRAWN:
        drawn: Number | None = getattr(cell, name)
        if drawn is None:
            continue
        if made := getattr(leading, name):
            if drawn.at_bound:
                setattr(leading, name, msgspec.structs.replace(made, at_bound=True))
        elif name != "moving_mean" or _stands_out(cell, cell.moving):
            at_bound, unit = drawn.at_bound, drawn.unit
            one = Estimate(value=drawn.value, interval=drawn.interval, unit=unit, method=RELEASED, at_bound=at_bound)
            setattr(leading, name, one)
    return leading


def is_anybody(cell: Cell) -> bool:
    """Whether the released number of users exceeds the standard deviation of its noise; an exact number does."""
    return _stands_out(cell, cell.users)


def _stands_out(cell: Cell, number: int | Number | None) -> bool:
    """Whether a noisy number exceeds the standard deviation of its noise."""
    return not isinstance(number, Number) or number.raw > cell.deviation_of(number)


def with_estimates(value: bytes, cell: Cell, clear_error: float | None = None) -> bytes:
    """The message of a cell with its leading estimates as ``estimate``; its other bytes stay as they were released.

    ``clear_error``: of a ``deviation`` that noise does not explain, its error (:mod:`stream.serve.differences`).
    """
    estimates = estimates_of(cell)
    if estimates and estimates.deviation and clear_error is not None:
        estimates.deviation = msgspec.structs.replace(estimates.deviation, clear_error=clear_error)
    return value.rstrip()[:-1] + b',"estimate":' + msgspec.json.encode(estimates) + b"}"


def read_cell(body: Mapping[str, Any]) -> Cell:
    """The cell of a message that is decoded already."""
    return msgspec.convert(body, Cell)


def estimates_in(body: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """:func:`estimates_of` a message that is decoded already, as JSON can hold them."""
    said: dict[str, dict[str, Any]] | None = msgspec.to_builtins(estimates_of(read_cell(body)))
    return said
