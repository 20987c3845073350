"""Sums of a window's (cell, user) pairs in place of its rows: which events count, and how sums are packed in Redis. Pure.

Of one user, in one window and partition, an event counts if it is later in event time than every event of theirs that counted before,
and if fewer than ``window.max_events_per_user`` did. So an event that is repeated, or overtaken by a later one, does not count. Which
events count follows from users, times and order of arrival; no measured value decides, and nobody else's events do.

A window of a partition is a hash. Field of 8 bytes, user -> :data:`LATEST`: time and number of their events that count, and the sums of
the pair that they were in last, since it was last another one. Most batches change these only. Field of 16 bytes, user and cell without
its last two digits -> :data:`ENTRY` of each earlier pair whose cell differs in these digits only, so at most 64. A pair may be in both,
and is their sum. Field ``upper`` -> largest bound in quanta to which a value was clipped before it was added.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpcore.pair_sums import PairSums

IntArray = NDArray[np.int64]
IdArray = NDArray[np.uint64]
BoolArray = NDArray[np.bool_]

ENTRY = np.dtype([("digits", "u1"), ("samples", "<u4"), ("sum", "<i8"), ("squares", "<i8")])
"""Sums of a pair in Redis: the last two digits of its cell, number of events, Σx and Σx² in quanta; 21 bytes."""
LATEST = np.dtype([("last", "<i8"), ("events", "<u4"), ("cells", "<u8"), ("entry", ENTRY)])
"""A user in Redis: time of their last event that counts, µs, the number of these events, and their last pair; 41 bytes."""
HEAD = np.dtype([("user", "<u8"), ("last", "<i8"), ("events", "<u4")])
"""What the store tells of a user whose events do not all count."""
_GIVEN_USER = np.dtype([("user", "<u8"), ("first", "<i8"), ("latest", LATEST)])
_FIELD = np.dtype([("user", "<u8"), ("cells", "<u8")])
_GIVEN_FIELD = np.dtype([*_FIELD.descr, ("entries", "u1")])
_USER = np.dtype([("user", "<u8"), ("latest", LATEST)])
_USER_BYTES = 8

_RESOLUTION, _FINEST, _DIGIT_BITS = 52, 15, 3
_TWO_DIGITS = np.uint64(63)


OVERTAKEN = "overtaken"
"""Reason, in metrics and summaries, for which an event does not count that follows one of its user as late in event time, or later."""


class SumTerms(NamedTuple):
    """``upper``: bound of a value, U, in quanta. ``most``: events of one user that count in a window and partition."""

    upper: int
    most: int


class Known(NamedTuple):
    """What the store knows of some users of a window, :data:`HEAD`, and how many events of one may count there."""

    users: NDArray[np.void]
    most: int


class Counted(NamedTuple):
    """Which events count, (N,), and which do not because their user has as many as may count; the others do not as they are overtaken."""

    counts: BoolArray
    beyond: BoolArray


def counted(
    slot: IntArray, user: IdArray, time: IntArray, most: int, known: Mapping[int, Known] | None = None
) -> Counted:
    """Which of N events of windows ``slot`` count, in the order in which they arrived.

    ``most`` events of one user may count in a window, unless ``known`` of that window says otherwise.
    """
    if not len(user):
        return Counted(np.zeros(0, dtype=bool), np.zeros(0, dtype=bool))
    order = np.lexsort((user, slot))  # which keeps the order of arrival of each user
    begin = _begins(slot[order], user[order])
    length = np.diff(np.append(begin, len(order)))
    floor, before, limit = _known_of(slot[order][begin], user[order][begin], most, known or {})
    group, own = np.repeat(np.arange(len(begin)), length), time[order]
    later = _later(group, own, floor, begin)
    so_far: IntArray = np.cumsum(later) - later
    # Up to the limit, events that are later than all before them are those that count.
    full = so_far - np.repeat(so_far[begin] - before, length) >= np.repeat(limit, length)
    last = floor.copy()  # of the events that count
    np.maximum.at(last, group, np.where(later & ~full, own, floor[group]))
    counts, beyond = np.empty((2, len(user)), dtype=bool)
    counts[order], beyond[order] = later & ~full, full & (own > last[group])
    return Counted(counts, beyond)


def _known_of(
    window: IntArray, user: IdArray, most: int, known: Mapping[int, Known]
) -> tuple[IntArray, IntArray, IntArray]:
    """Of each user of each window, in order, (G,): the time after which events count, how many did, how many may."""
    floor, before = np.full(len(user), np.iinfo(np.int64).min), np.zeros(len(user), dtype=np.int64)
    limit = np.full(len(user), most, dtype=np.int64)
    for of_window, (users, limit_there) in known.items():
        first, last = np.searchsorted(window, [of_window, of_window + 1])
        limit[first:last] = limit_there
        mine = users[np.isin(users["user"], user[first:last])]
        place = first + np.searchsorted(user[first:last], mine["user"])
        floor[place], before[place] = mine["last"], mine["events"]
    return floor, before, limit


def _later(group: IntArray, time: IntArray, floor: IntArray, begin: IntArray) -> BoolArray:
    """Which events, (N,), are later than the ``floor`` of their ``group`` and than all of it before them. Group g begins at ``begin[g]``."""
    earliest = int(time.min())
    span = int(time.max()) - earliest + 2
    if span * len(begin) >= 2**62:  # of any times whatever, their ranks are enough
        ranks = np.unique(np.concatenate([time, floor]), return_inverse=True)[1].astype(np.int64)
        time, floor, earliest, span = ranks[: len(time)], ranks[len(time) :], 0, len(ranks) + 2
    # The groups' times stand in stretches above one another, so one running maximum is that of every group.
    base = group * span
    key = base + (time - earliest + 1)
    least = base + (np.clip(floor, earliest - 1, earliest + span - 2) - earliest + 1)[group]
    running = np.append(0, np.maximum.accumulate(key)[:-1])
    running[begin] = least[begin]
    return np.asarray(key > np.maximum(least, running))


Packed = tuple[bytes, bytes, bytes]
"""Users with their last pairs, fields of the other pairs, and the entries of these, as the script reads them."""


def packed(slot: IntArray, rows: NDArray[np.void], upper: int) -> dict[int, Packed]:
    """Each window of ``rows`` that count, which are in order of arrival, packed."""
    if not len(rows):
        return {}
    pairs = _Pairs.of(slot, rows, upper)
    begin = _begins(pairs.window, pairs.user)
    users = np.empty(len(begin), dtype=_GIVEN_USER)
    last = np.maximum.reduceat(pairs.last, begin)
    users["user"], users["first"] = pairs.user[begin], np.minimum.reduceat(pairs.first, begin)
    # One pair of each user, as times of events that count differ.
    final = pairs.last == np.repeat(last, np.diff(np.append(begin, len(pairs.user))))
    users["latest"]["last"] = last
    users["latest"]["events"] = np.add.reduceat(pairs.entries["samples"].astype(np.int64), begin)
    users["latest"]["cells"], users["latest"]["entry"] = pairs.cells[final], pairs.entries[final]
    windows, others = pairs.window[begin], pairs.among(~final)
    begin = _begins(others.window, others.user, others.cells)
    fields = np.empty(len(begin), dtype=_GIVEN_FIELD)
    fields["user"], fields["cells"] = others.user[begin], others.cells[begin]
    fields["entries"] = np.diff(np.append(begin, len(others.user)))
    names = np.unique(windows)
    parts = (
        _split(users, windows, names),
        _split(fields, others.window[begin], names),
        _split(others.entries, others.window, names),
    )
    return dict(zip(names.tolist(), zip(*parts, strict=True), strict=True))


class _Pairs(NamedTuple):
    """The P pairs of some rows by window, user and cell, (P,) each: their sums, and the times of their first and last events."""

    window: IntArray
    user: IdArray
    cells: IdArray
    entries: NDArray[np.void]
    first: IntArray
    last: IntArray

    @classmethod
    def of(cls, slot: IntArray, rows: NDArray[np.void], upper: int) -> _Pairs:
        cells, digits = split_cells(rows["cell"])
        order = np.lexsort((digits, cells, rows["user"], slot))
        window, user, cells, digits = slot[order], rows["user"][order], cells[order], digits[order]
        value, time = np.clip(rows["value"][order].astype(np.int64), 0, upper), rows["time"][order]
        begin = _begins(window, user, cells, digits)
        entries = np.empty(len(begin), dtype=ENTRY)
        entries["digits"], entries["samples"] = digits[begin], np.diff(np.append(begin, len(order)))
        entries["sum"], entries["squares"] = np.add.reduceat(value, begin), np.add.reduceat(value * value, begin)
        first, last = np.minimum.reduceat(time, begin), np.maximum.reduceat(time, begin)
        return cls(window[begin], user[begin], cells[begin], entries, first, last)

    def among(self, chosen: BoolArray) -> _Pairs:
        window, user, cells, entries, first, last = self
        return _Pairs(window[chosen], user[chosen], cells[chosen], entries[chosen], first[chosen], last[chosen])


def _split(records: NDArray[np.void], window: IntArray, names: IntArray) -> Iterator[bytes]:
    """The bytes of ``records`` of each of the windows ``names``; ``window``: that of each record, ascending."""
    ends = np.searchsorted(window, names, side="right").tolist()
    for start, end in itertools.pairwise([0, *ends]):
        yield records[start:end].tobytes()


def split_cells(cell: IdArray) -> tuple[IdArray, NDArray[np.uint8]]:
    """(Cells without the last two digits of their resolution, these digits), (N,) each; any id whatever is divided so."""
    shift = _shift(cell)
    return cell & ~(_TWO_DIGITS << shift), (cell >> shift & _TWO_DIGITS).astype(np.uint8)


def joined_cells(cells: IdArray, digits: NDArray[np.uint8]) -> IdArray:
    """The cells that :func:`split_cells` divided, (N,)."""
    return cells | digits.astype(np.uint64) << _shift(cells)


def _shift(cell: IdArray) -> IdArray:
    """By how many bits the last two digits lie above the lowest bit."""
    resolution = cell >> np.uint64(_RESOLUTION) & np.uint64(15)
    return (np.uint64(_FINEST) - resolution) * np.uint64(_DIGIT_BITS)


def _begins(*columns: NDArray[np.generic]) -> IntArray:
    """Where each stretch of equal entries begins."""
    new = np.zeros(len(columns[0]), dtype=bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)


class DamagedSumsError(ValueError):
    """Stored sums that no sequence of additions leaves."""


class StoredPart(NamedTuple):
    """The sums of one partition: columns of its pairs, (P,) each, the bound of their values, and the latest time that counts, µs."""

    cell: IdArray
    user: IdArray
    entries: NDArray[np.void]
    upper: int
    last_us: int


class StoredSums(NamedTuple):
    """The sums of a window over all partitions that hold sums. ``last_us``: the latest time of an event that counts."""

    sums: PairSums
    last_us: int


class Page(NamedTuple):
    """Some fields of a hash: users with their last pairs, fields with the number of their entries, all of these, and ``upper``, 0 if absent."""

    users: NDArray[np.void]
    fields: NDArray[np.void]
    lengths: IntArray
    entries: NDArray[np.void]
    upper: int


def page_of(fields: Sequence[bytes]) -> Page:
    """The ``fields`` of a hash, names and values by turns."""
    names, values, lengths = fields[::2], fields[1::2], list(map(len, fields[::2]))
    pairs = [at for at, length in enumerate(lengths) if length == _FIELD.itemsize]
    users = [at for at, length in enumerate(lengths) if length == _USER_BYTES]
    upper = [value for name, value in zip(names, values, strict=True) if name == b"upper"]
    stored = [values[at] for at in pairs]
    return Page(
        np.frombuffer(b"".join(names[at] + values[at] for at in users), dtype=_USER),
        np.frombuffer(b"".join(names[at] for at in pairs), dtype=_FIELD),
        np.fromiter(map(len, stored), np.int64, len(stored)) // ENTRY.itemsize,
        np.frombuffer(b"".join(stored), dtype=ENTRY),
        int(upper[0]) if upper else 0,
    )


def part_of(pages: Sequence[Page], number: int) -> StoredPart | None:
    """The sums of a partition whose hash has ``number`` fields; None if ``pages`` lack some. A field may be on several pages.

    Raises :class:`DamagedSumsError` unless users have as many events as pairs.
    """
    users, fields, lengths, entries, uppers = (
        np.concatenate(columns) for columns in zip(*_columns(pages), strict=True)
    )
    users, once = users[_first_ones(users["user"])], _first_ones(fields["user"], fields["cells"])
    if len(users) + int(once.sum()) + len(uppers) != number:
        return None
    entries, fields, lengths = entries[np.repeat(once, lengths)], fields[once], lengths[once]
    latest = users["latest"]
    user = np.concatenate([users["user"], np.repeat(fields["user"], lengths)])
    cells = np.concatenate([latest["cells"], np.repeat(fields["cells"], lengths)])
    entries = np.concatenate([latest["entry"], entries])
    if len(uppers) != 1 or int(latest["events"].sum(dtype=np.int64)) != int(entries["samples"].sum(dtype=np.int64)):
        raise DamagedSumsError(
            "the sums of users and of pairs in Redis do not agree; restore Redis from its append-only file"
        )
    last = int(latest["last"].max()) if len(users) else 0
    return StoredPart(joined_cells(cells, entries["digits"]), user, entries, int(uppers[0]), last)


def _columns(pages: Sequence[Page]) -> Iterator[tuple[NDArray[Any], ...]]:
    uppers = {page.upper for page in pages if page.upper}
    for page in pages:
        yield *page[:4], np.array(sorted(uppers), dtype=np.int64)
        uppers = set()


def _first_ones(*columns: IdArray) -> BoolArray:
    """Whether each entry is the first one of its kind, (N,)."""
    once = np.ones(len(columns[0]), dtype=bool)
    order = np.lexsort(columns[::-1])
    once[order] = False
    once[order[_begins(*(column[order] for column in columns))]] = True
    return once


def together(parts: Iterable[StoredPart]) -> StoredSums | None:
    """The sums of all ``parts``; None without any."""
    several = list(parts)
    if not several:
        return None
    entries = np.concatenate([part.entries for part in several])
    sums = PairSums.group(
        np.concatenate([part.cell for part in several]),
        np.concatenate([part.user for part in several]),
        *(entries[name].astype(np.int64) for name in ("samples", "sum", "squares")),
        upper=max(part.upper for part in several),
    )
    return StoredSums(sums, max(part.last_us for part in several))
