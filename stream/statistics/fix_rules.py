"""Which fixes of a user are refused when their window is closed: frozen, teleporting, standing while they move. Pure.

Every verdict on a user's rows is a function of that user's own rows of the window. So under relation "participation"
(neighbours differ by all of one user's events) removing a user changes that user's part alone. Under "values"
(neighbours differ in one user's values) the rules read times and positions, which are public, and no value; there are
neither ``moving_us`` nor ``standing_m`` there, because they read values.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpcore.arrays import BoolArray, FloatArray, IdArray, IntArray
from dpcore.earth import great_circle_m
from stream.statistics.histograms.fixes import DEGREES, same_as_before
from stream.terms import FixRules

TELEPORT_M = 1_000.0
"""A shorter step is an error of position that any receiver may have, however short the time."""


@dataclass(frozen=True)
class _Fixes:
    """Distinct fixes, shape (F,), sorted by user, time and place; lat and lng in 1e-7 degree."""

    user: IdArray
    time_us: IntArray
    lat: IntArray
    lng: IntArray

    @property
    def place(self) -> tuple[FloatArray, FloatArray]:
        """Latitude and longitude in degrees."""
        return self.lat.astype(np.float64) * DEGREES, self.lng.astype(np.float64) * DEGREES

    @property
    def follows(self) -> BoolArray:
        """Whether each fix but the first has the same user as the one before it, shape (F - 1,)."""
        return np.asarray(self.user[1:] == self.user[:-1])


def refused(rules: FixRules, rows: npt.NDArray[np.void]) -> Mapping[str, BoolArray]:
    """Which of ``rows`` (N,) ``rules`` refuse, by reason; a row has one reason at most, whatever the order."""
    if rules == FixRules():
        return {}
    order = np.lexsort((rows["lng"], rows["lat"], rows["time"], rows["user"]))
    own = rows[order]
    again = same_as_before(*(own[name] for name in ("user", "time", "lat", "lng")))
    first = own[~again]
    fixes = _Fixes(first["user"], first["time"], first["lat"].astype(np.int64), first["lng"].astype(np.int64))
    of_row = np.empty(len(rows), dtype=np.int64)
    of_row[order] = np.cumsum(~again) - 1
    verdicts: dict[str, BoolArray] = {}
    left = np.ones(len(rows), dtype=bool)
    if rules.teleport_km_h:
        verdicts["teleport"] = _teleporting(fixes, rules.teleport_km_h)[of_row]
    if rules.frozen_us:
        verdicts["frozen"] = _frozen(fixes, rules.frozen_us)[of_row]
    if rules.moving_us:
        verdicts["frozen"] = _frozen(fixes, rules.moving_us)[of_row] & (rows["value"] != 0)
    if rules.standing_m:
        verdicts["standing"] = _standing(fixes, rules.standing_m, rows, of_row)
    for reason, verdict in verdicts.items():
        verdicts[reason] = verdict & left
        left &= ~verdict
    return verdicts


def _teleporting(fixes: _Fixes, fastest_km_h: float) -> BoolArray:
    """Fixes that every step from or to another fix of the user would reach too fast. A user's only fix is kept."""
    joined = fixes.follows
    lat, lng = fixes.place
    metres = great_circle_m(lat[:-1], lng[:-1], lat[1:], lng[1:])
    hours = np.diff(fixes.time_us) / 3.6e9
    jump = joined & (metres > TELEPORT_M) & (metres > 1_000 * fastest_km_h * hours)
    smooth = joined & ~jump
    none = np.zeros(1, dtype=bool)
    reached = np.concatenate([none, smooth]) | np.concatenate([smooth, none])
    jumps = np.concatenate([none, jump]) | np.concatenate([jump, none])
    return np.asarray((jumps & ~reached)[: len(fixes.user)])


def _frozen(fixes: _Fixes, longest_us: int) -> BoolArray:
    """All fixes of a stay at exactly one position that lasts longer than ``longest_us``."""
    if not len(fixes.user):
        return np.zeros(0, dtype=bool)
    stays = fixes.follows & (np.diff(fixes.lat) == 0) & (np.diff(fixes.lng) == 0)
    begin = np.flatnonzero(np.concatenate([[True], ~stays]))
    end = np.append(begin[1:], len(fixes.user)) - 1
    return np.repeat(fixes.time_us[end] - fixes.time_us[begin] > longest_us, end - begin + 1)


def _standing(fixes: _Fixes, least_m: float, rows: npt.NDArray[np.void], of_row: IntArray) -> BoolArray:
    """Rows of users whose every speed is 0, although a fix is farther than ``least_m`` from their first one."""
    begin = np.flatnonzero(np.concatenate([np.ones(min(len(fixes.user), 1), dtype=bool), ~fixes.follows]))
    user = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(fixes.user))))
    start = begin[user]
    lat, lng = fixes.place
    metres = great_circle_m(lat[start], lng[start], lat, lng)
    moved, reports = np.zeros(len(begin), dtype=bool), np.zeros(len(begin), dtype=bool)
    moved[user[metres > least_m]] = True
    owner = user[of_row]
    reports[owner[rows["value"] != 0]] = True
    return np.asarray((moved & ~reports)[owner])
