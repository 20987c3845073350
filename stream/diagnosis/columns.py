"""Guesses which fields of a feed hold user, time, latitude, longitude and speed, by their names and a sample of their
values.

A field in which nearly every value occurs once is never taken for the user.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from stream.config.feed import FeedFields
from stream.diagnosis.refusals import powers_of_degrees
from stream.diagnosis.times import TimeForm, time_form
from stream.diagnosis.users import LEAST_EVENTS, ONCE
from stream.ingestion.formats import field_path, known_fields, number_or_none, walk

_NAMES = {
    role: tuple(map(re.compile, names.split()))
    for role, names in {
        "user": "user vehicle(id|ref|no|number) vehicle "
        "licen[cs]eplate|plate|placa|matricula|immatriculation|kennzeichen "
        "(bus|taxi|device|tracker|unit)(id|no|nr)?|fahrzeug(nr|nummer|id)?|kennung|(id)?(unidad|vehicul[oe]|veiculo) "
        "identifiant|ordem|prefixo|imei vehiclelabel label|veh name id",
        "time": "time|timestamp observationdatetime|recordedat(time)?|datetime|eventtime|gpstime|observedat|tst? "
        "date|seen|at|when|t .*(time|stamp|date|fecha|hora|horodat|zeit|datum|heure|updated).*",
        "lat": "lat|latitude y|gpslat|locationlat|coordinates1|1 (.*[^p])?(lat|latitude?|breite|breitengrad)(deg|dd)?",
        "lng": "lng|longitude|lon|long x|gpslon|locationlng|coordinates0|0 "
        "(.*[^e])?(lng|lon|longitude?|la?engrad|la?enge|langengrad|lange)(deg|dd)?",
        "speed": "speed|velocity kmh|speedkmh|mph|spd|gpsspeed|v .*(speed|velo[cz]i|geschwind|vitesse).*|tempo",
    }.items()
}
"""Names of each role, the surest first: without accents, punctuation and what is in brackets, in lower case."""
_LIKE_A_VEHICLE = "veh|veic|fahrz|bus|taxi|tram|plate|matric|placa|device|imei|user|driver"
_LIKE_A_USER = re.compile(
    _LIKE_A_VEHICLE + r"|train|car$|unit|unid|dispositiv|track|fleet|code|codigo|linea|nr$|num|no$|id$|ref$|label|name"
)
"""Parts of names that a user's field may have."""
_DEEPEST, _KEYED, _LOOKED_AT, _LEAST_SHARE = 6, 5, 50, 0.1


class Guess(NamedTuple):
    """The fields of a feed, the form of its times, and what a reader is to know of how the user was chosen."""

    fields: FeedFields
    times: TimeForm | None
    notes: tuple[str, ...] = ()


class GuessError(ValueError):
    """No guess is possible; the message says which roles have no field, and what might."""


def paths_of(tree: Any, prefix: str = "", depth: int = 0) -> list[str]:
    """Paths of all values in a JSON object; of lists, only of the first two numbers, or of the first object."""
    if depth >= _DEEPEST:
        return []
    if isinstance(tree, dict):
        entries: Iterable[tuple[str, Any]] = tree.items()
    elif isinstance(tree, list) and len(tree) in (2, 3) and all(isinstance(value, int | float) for value in tree):
        entries = ((str(at), value) for at, value in enumerate(tree[:2]))
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        entries = [("0", tree[0])]
    else:
        return [prefix] if prefix else []
    paths: list[str] = []
    for name, value in entries:
        if name and "." not in name:
            paths += paths_of(value, f"{prefix}.{name}" if prefix else name, depth + 1)
    return paths


def guess_fields(paths: Iterable[str], no_users: Iterable[str] = ()) -> dict[str, str]:
    """The likely path of each role, for those that have one; each path once at most, and no user among ``no_users``."""
    names, excluded = {path: _plain(path) for path in paths}, set(no_users)
    roles: dict[str, str] = {}
    for role in ("lat", "lng", "time", "speed", "user"):
        ranked = [
            (rank, len(path), path)
            for path, plain in names.items()
            if path not in roles.values() and not (role == "user" and path in excluded)
            for rank, pattern in enumerate(_NAMES[role])
            if any(map(pattern.fullmatch, plain))
        ]
        if ranked:
            roles[role] = min(ranked)[2]
    return roles


def _plain(path: str) -> tuple[str, str, str]:
    """The name, the name with that of its parent, and, of an id or an NGSI-LD value, the parent's.

    All are in lower case and have only letters and digits, without accents and what is in brackets.
    """
    text = unicodedata.normalize("NFKD", re.sub(r"\[.*?\]|\(.*?\)", "", path.lower()))
    parts = [re.sub(r"[^a-z0-9]", "", part) for part in text.split(".")]
    parent = parts[-2] if len(parts) > 1 else ""
    return parts[-1], parent + parts[-1], {"id": f"{parent}id", "value": parent}.get(parts[-1], "")


def guess(sample: Sequence[Mapping[str, Any]], no_users: Iterable[str] = ()) -> Guess:
    """The fields of a feed by a ``sample`` of its events as trees. ``no_users``: fields that are known to name events.

    Raises :class:`GuessError`.
    """
    if sample and _is_keyed(sample[0]):
        raise GuessError("its events stand in an object, under names that may be those of users: write them as a list")
    there = Counter(chain.from_iterable(set(paths_of(tree)) for tree in sample[:_LOOKED_AT]))
    paths = sorted(path for path, times in there.items() if times >= _LEAST_SHARE * len(sample[:_LOOKED_AT]))
    counts = {path: _counted(sample, path) for path in paths}
    repeating = [
        path for path in paths if counts[path].distinct > 1 and 2 * counts[path].distinct <= counts[path].values
    ]
    alike = [path for path in repeating if _LIKE_A_USER.search(_plain(path)[1])]
    once = set(no_users) | {path for path in paths if alike and counts[path].names_events}
    roles, notes = guess_fields(paths, once), list[str]()
    alike = [path for path in alike if path not in roles.values()]
    first = roles.get("user")
    if alike and (first is None or (first.split(".")[-1].lower() == "id" and "vehicle" not in first)):
        best = max(alike, key=lambda path: (_likeness(path), counts[path].distinct))
        if first is None or _likeness(best) > 1:
            roles["user"] = best
            named = (path for path in paths if "user" in guess_fields([path]) or _LIKE_A_USER.search(_plain(path)[0]))
            passed_by = [first] if first else sorted(once.intersection(named))
            notes.append(_why_user(best, counts[best], passed_by, repeat=first is not None))
    missing = [role for role in ("user", "time", "lat", "lng") if role not in roles]
    if missing:
        raise GuessError(_why_none(paths, missing, once, repeating))
    fields, times, powers = _fields(sample, roles)
    if powers:
        notes.append(
            f"Positions are degrees times {' or '.join(map(str, powers))}: feed.fields.units_per_degree."
            + (" Look the place up on a map, to choose." if len(powers) > 1 else "")
        )
    return Guess(fields, times, tuple(notes))


def _why_user(path: str, count: "_Counted", passed_by: list[str], *, repeat: bool) -> str:
    """Says that a field is taken for the user, which the values of the others ``repeat`` as well, or name events."""
    why = "which repeats, too" if repeat else "nearly every value of which occurs once"
    return (
        f"{path!r} is taken for the user, because its values repeat ({count.distinct} in {count.values} events) and "
        f"its name is like a user's{''.join(f'; not {other!r}, {why}' for other in passed_by)}. Ask whoever runs the "
        "feed: the promise is made to what this field names."
    )


def _is_keyed(tree: Any) -> bool:
    """Whether an object, or a value of it, has events under names, as in {"bus-1": {…}, "bus-2": {…}}."""
    if not isinstance(tree, Mapping):
        return False
    values = list(tree.values())
    names = {frozenset(value) if isinstance(value, dict) else None for value in values}
    return (len(values) >= _KEYED and len(names) == 1 and None not in names) or any(map(_is_keyed, values[:_KEYED]))


def _why_none(paths: list[str], missing: list[str], once: set[str], repeating: list[str]) -> str:
    why = f"no field looks like {', '.join(missing)} among {', '.join(paths)[:200]!r}"
    if missing == ["user"]:
        why += f"; {', '.join(sorted(once))} names events, because nearly every value occurs once" if once else ""
        why += f"; values repeat in {', '.join(repeating)[:100]}: name the user's in [feed.fields]" if repeating else ""
    return why


class _Counted(NamedTuple):
    """Values of one field in a sample: how many there are, how many occur once, and how many differ."""

    values: int
    once: int
    distinct: int

    @property
    def names_events(self) -> bool:
        return self.values >= LEAST_EVENTS and self.once >= ONCE * self.values


def _likeness(path: str) -> int:
    plain = _plain(path)[1]
    return 2 * bool(re.search(_LIKE_A_VEHICLE, plain)) + bool(re.search(r"code|codigo|id$|ref$|nr$|num|no$", plain))


def _values(sample: Sequence[Mapping[str, Any]], path: str) -> list[Any]:
    keys, values = field_path(path), []
    for tree in sample:
        try:
            values.append(tree[path] if path in tree else walk(tree, keys))
        except LookupError:
            continue
    return values


def _counted(sample: Sequence[Mapping[str, Any]], path: str) -> _Counted:
    counts = Counter(
        value
        for value in _values(sample, path)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    )
    return _Counted(counts.total(), sum(count == 1 for count in counts.values()), len(counts))


def _fields(
    sample: Sequence[Mapping[str, Any]], roles: Mapping[str, str]
) -> tuple[FeedFields, TimeForm | None, list[int]]:
    """The fields, with the form of times and the units of degrees that their values show."""
    both = zip(*(map(number_or_none, _values(sample, roles[role])) for role in ("lat", "lng")), strict=False)
    places = [place for place in both if None not in place]
    powers = powers_of_degrees(*zip(*places, strict=True)) if places else []
    times = time_form(_values(sample, roles["time"]))
    name = "rfc3339" if times is None or times.time_format == "epoch-ns" else times.time_format
    zone = "UTC" if times is not None and (times.local or times.is_utc) else None
    paths = {"value" if role == "speed" else role: path for role, path in roles.items()}
    return (
        FeedFields(**paths, time_format=name, timezone=zone, units_per_degree=powers[0] if powers else 1),
        times,
        powers,
    )


def known_format(paths: Iterable[str], fields: FeedFields) -> str | None:
    """The known format that reads the same from events with these paths; None if only the declared fields do."""
    there = set(paths)
    if fields.time_format not in ("rfc3339", "epoch-ms") or fields.timezone is not None or fields.units_per_degree != 1:
        return None
    return next(
        (
            name
            for name, known in known_fields().items()
            if set(known.paths) <= there and known.paths[:4] == fields.paths[:4]
        ),
        None,
    )
