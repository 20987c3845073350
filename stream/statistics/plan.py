"""The plan of a window, made before noise is drawn: what is due, who pays what, and a part for each statistic.

Spreads a budget that is too small for all windows of a period evenly over them, for each user alone.

Without it, users are admitted first come, first served: one who is active all day has nothing left in the evening.

Whether a window can be stored: plan and committed bytes are one value each, so bounded before the charge.
"""

import hashlib
from datetime import datetime
from typing import Any, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, IdArray, IntArray
from dpcore.budget import ChargeBasis, rolling_grants
from dpcore.contributions import Contributions, Counts
from dpcore.scales import LaplaceScales
from stream.terms import Struct, Terms
from stream.windows import Period, Window, utc_text

LARGEST_VALUE = 500_000_000
"""Bytes. A Redis in its default configuration closes the connection that sends 512 MiB or more
(``proto-max-bulk-len``)."""
LARGEST_MESSAGE = 4_000
"""Bytes of a cell's message with key and headers, without the distribution, with all statistics, counts and models."""
MOST_CELLS = 100_000
"""Cells of a window. Their messages, the distributions (:data:`stream.statistics.columns.MAX_NUMBERS`) and a
message of each kind of histogram stay below :data:`LARGEST_VALUE`."""


class TooLargeError(ValueError):
    """A window that could be drawn and charged, but not stored."""


NO_IDS: IdArray = np.zeros(0, dtype=np.uint64)
NO_INTEGERS: IntArray = np.zeros(0, dtype=np.int64)


class PlanError(RuntimeError):
    """Rows and plan do not belong together, so nothing may be released."""


class Due(Struct, frozen=True):
    """A window that is to be released, on which terms, and the generation of the ledger that pays for it."""

    terms: Terms
    window: Window
    generation: str

    @property
    def period(self) -> Period:
        """The ledger period that the window belongs to."""
        return self.terms.period_of(self.window)

    @property
    def windows_left(self) -> int:
        """This window and those of the period after it in which somebody may be active: in the hours of service."""
        terms, later = self.terms, range(self.window.start + self.terms.slot_s, self.period.end, self.terms.slot_s)
        if terms.privacy.service is None:
            return 1 + len(later)
        zone, serving = ZoneInfo(terms.timezone), 0
        for start in later:
            clock = datetime.fromtimestamp(start, zone)
            since_midnight = 3600 * clock.hour + 60 * clock.minute + clock.second
            serving += terms.privacy.serves(since_midnight, since_midnight + terms.slot_s)
        return 1 + serving


class Allowance(NamedTuple):
    """What the ledger knows about the users of a window and its period.

    ``left``: (L,) what each user has left, in the ledger's unit. ``budget``: that of the period, in the same unit.
    ``by_counts``: whether charges of the period depended on counts.
    """

    left: IntArray
    budget: int
    by_counts: bool = False


class ValuesPart(Struct, frozen=True, kw_only=True, eq=False):
    """What is decided under relation "values" alone.

    ``published``: whether each of the plan's cells is published, (C,); the others are suppressed.
    ``mean_epsilon_micro``: µε of one cell's mean; 0 if the mean is allocated. ``caps``: the most that one user adds to
    Σx of each cell, in quanta, (C,), None for no caps; ``sum_cap``: the largest of them. ``merged``: the cell into
    which each hexagon with rows is merged, ascending by hexagon; None if no hexagon is merged. ``cut_short``: what
    public counts made too costly to try in full. ``chosen``: the proposal of least predicted error, "all" samples,
    or "suppressed"; "" without a choice. ``most_cells``: of one admitted user, before and after. ``lower``,
    ``upper``: range in quanta to which users' means in each cell are clipped, around the ``foretold`` mean, (C,); None
    if they are not.
    """

    published: BoolArray
    mean_epsilon_micro: int = 0
    sum_cap: int = 0
    caps: IntArray | None = None
    merged: IdArray | None = None
    cut_short: tuple[str, ...] = ()
    chosen: str = ""
    most_cells: tuple[int, int] = (0, 0)
    lower: IntArray | None = None
    upper: IntArray | None = None
    foretold: IntArray | None = None


class ParticipationPart(Struct, frozen=True, kw_only=True, eq=False):
    """What is decided under relation "participation" alone.

    ``lower``, ``upper``: range in quanta to which users' means in each cell are clipped, around the ``foretold`` mean,
    (C,); None if they are not.
    """

    lower: IntArray | None = None
    upper: IntArray | None = None
    foretold: IntArray | None = None


class Plan(Struct, frozen=True, kw_only=True, eq=False):
    """All decisions about a window that are made before noise is drawn.

    ``budget``: the most that one user may spend in the period, in the unit of ``charges``: µε, or nρ under zCDP, where
    noise is discrete Gaussian. ``cells``: ids of those that get a message, (C,). ``users``: ids of all users with rows,
    (L,); ``charges``: of each, 0 for users who do not take part. ``retained``: number of retained samples of each
    (cell, user) pair, (P,), sorted by cell, as in ``counts_digest``. ``numerators``, ``denominators``: see
    :attr:`scales`. ``fixes_digest``: of all fixes in the box of the histograms; empty without histograms. ``withheld``:
    the window could not be planned, so nothing is drawn and nobody is charged; its close marker says so.
    """

    due: Due
    budget: int
    cells: IdArray = NO_IDS
    users: IdArray = NO_IDS
    charges: IntArray = NO_INTEGERS
    retained: IntArray = NO_INTEGERS
    numerators: IntArray = NO_INTEGERS
    denominators: IntArray = NO_INTEGERS
    counts_digest: str = ""
    fixes_digest: str = ""
    values: ValuesPart | None = None
    participation: ParticipationPart | None = None
    withheld: bool = False

    @property
    def terms(self) -> Terms:
        """The terms that the window is released on."""
        return self.due.terms

    @property
    def window(self) -> Window:
        """The timeslot."""
        return self.due.window

    @property
    def period(self) -> Period:
        """The ledger period."""
        return self.due.period

    @property
    def generation(self) -> str:
        """Identity of the ledger that pays for the window."""
        return self.due.generation

    @property
    def scales(self) -> LaplaceScales:
        """Noise scales as flat arrays; under zCDP scales of Gaussians. A numerator of 0 means that no noise is needed.

        Under "values": C scales for each of mean, moving mean and variance, then C·h for the levels of the
        distribution. Under "participation": one for the polynomials, one for users if they are counted separately, one
        for each level, one for moving reports, one for the area.
        """
        return LaplaceScales(self.numerators, self.denominators)

    @property
    def published(self) -> BoolArray:
        """Whether each of ``cells`` is published, (C,); the others are suppressed, under "values" alone."""
        return np.ones(len(self.cells), dtype=bool) if self.values is None else self.values.published

    @property
    def chosen(self) -> str:
        """The proposal of least predicted error, as in :class:`ValuesPart`; "" without a choice."""
        return "" if self.values is None else self.values.chosen

    @property
    def caps(self) -> IntArray | None:
        """The most that one user adds to Σx of each of ``cells``, in quanta, (C,); None if sums are not capped."""
        return None if self.values is None else self.values.caps

    @property
    def merged(self) -> IdArray | None:
        """The cell into which each hexagon with rows is merged, ascending by hexagon; None if no hexagon is merged."""
        return None if self.values is None else self.values.merged

    @property
    def ranges(self) -> IntArray | None:
        """Range in quanta to which users' means in each cell are clipped, shape (2, C); None if not clipped."""
        part = self.participation or self.values
        return None if part is None or part.lower is None else np.array([part.lower, part.upper])

    @property
    def gaussian(self) -> bool:
        """Whether noise is discrete Gaussian, and charges are in nρ."""
        return self.terms.privacy.zcdp is not None

    @property
    def digest(self) -> str:
        """Digest that identifies this plan."""
        return hashlib.sha256(encode_plan(self)).hexdigest()

    @property
    def charge_basis(self) -> ChargeBasis:
        """What the charges of this plan may depend on."""
        if self.terms.participation is not None:
            return "own"
        return "counts" if self.terms.histogram is None or self.withheld else "histograms"

    def charged_users(self) -> tuple[IdArray, IntArray]:
        """The users with a charge above 0, and their charges."""
        return self.users[self.charges > 0], self.charges[self.charges > 0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and encode_plan(self) == encode_plan(other)

    __hash__ = None  # type: ignore[assignment]


_STORED = {np.uint64: "<u8", np.int64: "<i8", np.bool_: "?"}
"""Stored form of the entries of a column."""


def _bytes_of(column: Any) -> bytes:
    """Stored form of a column, which has one of the types of entries above."""
    if not isinstance(column, np.ndarray):
        raise NotImplementedError(f"a plan holds columns, numbers and text, no {type(column).__name__}")
    return column.astype(_STORED[column.dtype.type]).tobytes()


def _column_of(kind: Any, stored: Any) -> Any:
    """A stored column of the annotated ``kind``; read-only."""
    entry = get_args(get_args(kind)[1])[0]
    return np.frombuffer(stored, _STORED[entry]).astype(entry, copy=False)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_bytes_of)
_DECODER = msgspec.msgpack.Decoder(Plan, dec_hook=_column_of)


def encode_plan(plan: Plan) -> bytes:
    """Stored form of a plan. Columns are little-endian bytes."""
    return _ENCODER.encode(plan)


def decode_plan(blob: bytes) -> Plan:
    """The plan that a stored form represents; raises :class:`PlanError` for a form that this version does not know."""
    try:
        return _DECODER.decode(blob)
    except msgspec.DecodeError as error:
        raise PlanError(
            f"a stored plan cannot be read ({error}); nothing was drawn. If a newer version made it, upgrade this "
            "worker; otherwise restore Redis from its append-only file"
        ) from None


def require_storable(plan: Plan) -> None:
    """Raise :class:`TooLargeError` for more cells than :data:`MOST_CELLS` or more bytes than :data:`LARGEST_VALUE`."""
    if len(plan.cells) > MOST_CELLS:
        raise TooLargeError(
            f"the window has {len(plan.cells)} cells, and Redis can store the messages of {MOST_CELLS}; nobody was "
            "charged. Lower hexagons.resolution or window.slot, or narrow feed.domain"
        )
    if (size := len(encode_plan(plan))) > LARGEST_VALUE:
        raise TooLargeError(
            f"the plan of the window takes {size} bytes, and Redis can store {LARGEST_VALUE}; nobody was charged. "
            "Lower hexagons.resolution or window.slot, or split the feed"
        )


def counts_digest(counts: Counts) -> str:
    """Digest of who contributed how often where. A plan fits only rows with its digest."""
    state = hashlib.sha256()
    for column in (counts.cells, counts.users, counts.pair_cell, counts.pair_user, counts.samples):
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()


def check_rows(plan: Plan, contributions: Contributions) -> None:
    """Raise :class:`PlanError` if the rows are not those that were planned and charged, or clipped to another bound."""
    upper = plan.terms.speed.upper_quanta
    if contributions.upper != upper:
        raise PlanError(
            f"the noise of window {utc_text(plan.window.start)} protects speeds up to {upper} quanta, but its rows are "
            f"clipped to {contributions.upper}; nothing was drawn"
        )
    if counts_digest(contributions.counts) != plan.counts_digest:
        raise PlanError(
            f"the rows of window {utc_text(plan.window.start)} changed after they were planned; nothing was drawn. "
            "Restore Redis from its append-only file"
        )


_ODD = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: its multiples spread over all 64-bit numbers."""


def spendable(left: IntArray, users: npt.NDArray[np.uint64], due: Due, budget: int) -> IntArray:
    """What each of ``users`` may spend in the window that is ``due``, shape (L,), in the ledger's unit: at most
    ``left``.

    ``left``: (L,) what they have left of ``budget`` in the window's period. With ``admission`` "paced" they may have
    spent, by the end of the window, the share of ``budget`` that has passed of the period, plus a part of one window's
    grant. That part is drawn for each user and period by their pseudonym, so that users take turns instead of being
    absent together. It depends on the time, the configuration and the user's own past charges and pseudonym alone, so
    charges remain what the filter of docs/privacy.md admits under either relation: pacing admits nobody whom the ledger
    would refuse. With "rolling", for relation "values", they may spend an even share of what they have left over the
    windows left of the period (:mod:`dpcore.budget`).
    """
    if due.terms.privacy.rolling:
        return rolling_grants(budget, np.maximum(budget - left, 0), due.windows_left)
    if not due.terms.privacy.paced:
        return left
    period = due.period
    passed = budget * (due.window.end - period.start) // (period.end - period.start)
    turns = (users ^ np.uint64(period.start)) * np.uint64(_ODD)
    turns = (turns ^ turns >> np.uint64(32)) * np.uint64(_ODD)
    turns ^= turns >> np.uint64(32)
    ahead = (turns % np.uint64(due.terms.window_grant)).astype(np.int64)
    spent = budget - left
    paced: IntArray = np.clip(passed + ahead - spent, 0, np.maximum(left, 0))
    return paced
