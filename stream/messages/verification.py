"""Checks releases as a third party can: messages, close markers, their chain and signatures, and what they promise.

Pure: it is given records in the order in which they were published, and says what contradicts what. It cannot see that
noise was drawn, nor that charges were written before: those are claims about the operator's machine
(:data:`UNCHECKED`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from stream.messages.chain import SIGNATURE, Succession, signed_by, value_digest
from stream.messages.message import (
    HEXAGON_SPEED,
    RELEASE_TOPICS,
    SPATIAL_HISTOGRAM,
    WINDOW,
    digest,
    identifier,
    validator,
)
from stream.windows import Window, utc_text

UNCHECKED = (
    "Not checked, because releases cannot show it: that noise was drawn, and drawn once; that every user was charged "
    "before; that the rows were those of the feed. The audits, and the evidence of a release, are about these."
)
_HALF = 5e-7
"""Half of the ledger's smallest unit, as ε."""


class Record(NamedTuple):
    """One message as it was found. ``where``: its place, for people."""

    topic: str
    headers: Mapping[str, str]
    value: bytes
    where: str


class Problem(NamedTuple):
    """One contradiction. ``kind`` names the check."""

    kind: str
    feed: str
    text: str


@dataclass
class _Marker:
    """A close marker with its value, its digest and its place in the order of records."""

    body: dict[str, Any]
    digest: str
    signature: str | None
    value: bytes

    @property
    def window(self) -> Window:
        return _span(self.body["window"])

    @property
    def name(self) -> str:
        return f"window {self.body['window']['start']} (number {self.body['sequence']})"


@dataclass
class _Feed:
    """What was found of one feed. ``parts``: of each window, the messages before its marker by ce_id."""

    markers: list[_Marker] = field(default_factory=list)
    parts: dict[Window, dict[str, bytes]] = field(default_factory=dict)


@dataclass
class Verification:
    """Takes records and gathers what contradicts. ``trusted``: public keys of the operator. ``held``: digests of close
    markers that the reader kept from earlier.
    """

    trusted: Collection[str] = ()
    held: Collection[str] = ()
    problems: list[Problem] = field(default_factory=list)
    _feeds: dict[str, _Feed] = field(default_factory=dict)
    _seen: dict[str, bytes] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Take one record. Messages that are sent again with the same bytes are dropped, as readers do."""
        if record.topic not in RELEASE_TOPICS:
            return
        try:
            body = msgspec.json.decode(record.value)
        except (msgspec.DecodeError, RecursionError):
            body = None
        if body is None or not validator(record.topic).is_valid(body):
            self._found("schema", "", f"{record.where}: this is no message of {record.topic}")
            return
        feed, window = body["feed"], _span(body["window"])
        ce_id = identifier(record.topic, feed, window, _part(record.topic, body))
        if record.headers.get("ce_id") != ce_id:
            self._found(
                "identity", feed, f"{record.where}: the message does not bear the ce_id of what it says, {ce_id}"
            )
            return
        fingerprint = sha256(record.value).digest()
        if ce_id in self._seen:
            if self._seen[ce_id] != fingerprint:
                self._found(
                    "twice",
                    feed,
                    f"{record.where}: {ce_id} was published before with another content: it was drawn twice, or "
                    "changed",
                )
            return
        self._seen[ce_id] = fingerprint
        known = self._feeds.setdefault(feed, _Feed())
        if record.topic == WINDOW:
            known.markers.append(_Marker(body, value_digest(record.value), record.headers.get(SIGNATURE), record.value))
        else:
            known.parts.setdefault(window, {})[ce_id] = record.value

    def finish(self) -> dict[str, Any]:
        """The report on everything taken: what each feed shows, and the problems. ``sound``: there are none."""
        feeds = [self._report(name, known) for name, known in sorted(self._feeds.items())]
        digests = {marker.digest for known in self._feeds.values() for marker in known.markers}
        for missing in sorted(set(self.held) - digests):
            self._found(
                "held",
                "",
                f"the close marker {missing}, which you hold, is not among these: what it stated was left out or "
                "replaced",
            )
        if not feeds:
            self._found("empty", "", "there is no close marker, so nothing can be verified")
        problems = [problem._asdict() for problem in self.problems]
        return {"sound": not problems, "feeds": feeds, "problems": problems, "unchecked": UNCHECKED}

    def _found(self, kind: str, feed: str, text: str) -> None:
        self.problems.append(Problem(kind, feed, text))

    def _report(self, feed: str, known: _Feed) -> dict[str, Any]:
        markers = sorted(known.markers, key=lambda marker: int(marker.body["sequence"]))
        faded = _faded(markers, known.parts)
        self.problems += [Problem(kind, feed, text) for kind, text in self._problems(known, markers, faded)]
        if not markers:
            return {"feed": feed, "windows": 0}
        first, last = markers[0].body, markers[-1].body
        return {
            "feed": feed,
            "windows": len(markers),
            "first": first["window"]["start"],
            "last": last["window"]["start"],
            "numbers": [first["sequence"], last["sequence"]],
            "faded": faded,
            "chained": sum("previous" in marker.body for marker in markers),
            "signed": sum("signer" in marker.body for marker in markers),
            "signers": list(dict.fromkeys(marker.body["signer"] for marker in markers if "signer" in marker.body)),
            "withheld": [marker.body["window"]["start"] for marker in markers if marker.body.get("withheld")],
            "relation": last["relation"],
            "epsilon": last["epsilon"],
            "budget": last["budget"],
            "horizon": last.get("horizon", {}).get("budget"),
            "last_marker": markers[-1].digest,
        }

    def _problems(self, known: _Feed, markers: list[_Marker], faded: int) -> Iterator[tuple[str, str]]:
        """Kind and text of each problem of one feed."""
        if known.markers != markers:
            yield "order", "the close markers do not stand in the order of their numbers"
        for marker in markers[faded:]:
            yield from _of_messages(marker, known.parts.pop(marker.window, {}))
        for window in sorted(known.parts):
            yield "unmarked", f"window {utc_text(window.start)} has messages and no close marker"
        for before, after in zip([None, *markers], markers, strict=False):
            yield from _of_link(before, after)
        yield from self._of_signatures(markers)
        yield from _of_promises(markers)

    def _of_signatures(self, markers: list[_Marker]) -> Iterator[tuple[str, str]]:
        accepted = set(self.trusted)
        last: str | None = None
        for marker in markers:
            signer = marker.body.get("signer")
            if signer is None:
                if last is not None or self.trusted:
                    yield "signature", f"{marker.name} is not signed"
                continue
            if not signed_by(signer, marker.value, marker.signature or ""):
                yield "signature", f"{marker.name}: the signature is missing or not of this content"
            succession = Succession(**marker.body["succeeds"]) if "succeeds" in marker.body else None
            endorser = succession.signer if succession is not None and succession.endorses(signer) else None
            if endorser in accepted:
                accepted.add(signer)
            if last not in (None, signer, endorser):
                yield (
                    "signature",
                    f"{marker.name} is signed by another key than the one before, which did not endorse it",
                )
            if self.trusted and signer not in accepted and signer != last:
                yield "signature", f"{marker.name} is signed by {signer}, which is none of the keys that you trust"
            last = signer


def _of_messages(marker: _Marker, parts: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    body = marker.body
    values = [parts[ce_id] for ce_id in sorted(parts)]
    if len(values) != body["messages"]:
        yield "messages", f"{marker.name} has {len(values)} messages, its close marker says {body['messages']}"
    elif digest(values) != body["digest"]:
        yield "digest", f"{marker.name}: the messages are not those that its close marker names by their digest"
    decoded = [msgspec.json.decode(value) for value in values]
    cells = [(part["epsilon"], part["relation"]) for part in decoded if "mechanism" not in part]
    if set(cells) - {(body["epsilon"], body["relation"])}:
        yield "epsilon", f"{marker.name}: a message states another epsilon or relation than its close marker"
    histograms = sum(part["epsilon"] for part in decoded if "mechanism" in part)
    if histograms > body.get("histogram_epsilon", 0.0) + _HALF * max(1, len(values)):
        yield "epsilon", f"{marker.name}: its histograms state more epsilon together than its close marker"


def _of_link(before: _Marker | None, after: _Marker) -> Iterator[tuple[str, str]]:
    body = after.body
    if before is None:
        if body["sequence"] == 1 and body.get("previous") is not None:
            yield "chain", f"{after.name} names a close marker before the first"
        return
    earlier = before.body
    if body["generation"] != earlier["generation"]:
        yield "generation", f"{after.name} is of another ledger than {before.name}: budgets were granted a second time"
    left_out = body["sequence"] - earlier["sequence"] - 1
    if left_out < 0:
        yield "twice", f"{before.name} and {after.name} have the same number"
        return
    if left_out:
        yield "left-out", f"{left_out} close marker(s) between {before.name} and {after.name} are left out"
        return
    begins = "previous" not in earlier and body.get("previous") is None
    if not begins and body.get("previous") != before.digest:
        yield "chain", f"{after.name} does not continue from {before.name} as it is here: one of them was changed"
    if after.window.start < before.window.end:
        why = "windows are released in the order of their time"
        yield "time", f"{after.name} begins before the end of {before.name}: {why}"


def _of_promises(markers: list[_Marker]) -> Iterator[tuple[str, str]]:
    budgets: dict[str, float] = {}
    periods: set[Window] = set()
    blocks: dict[Window, float] = {}
    for marker in markers:
        body, name, period = marker.body, marker.name, _span(marker.body["period"])
        if not period.start <= marker.window.start < marker.window.end <= period.end:
            yield "period", f"{name} does not lie in the period that its close marker states"
        if _overlaps(period, periods):
            yield "period", f"{name}: its period overlaps another one, so its users would have two budgets"
        periods.add(period)
        if "horizon" in body:
            yield from _of_block(marker, period, blocks)
        for problem in _allowances(body, budgets):
            yield "budget", f"{name}: {problem}"


def _of_block(marker: _Marker, period: Window, blocks: dict[Window, float]) -> Iterator[tuple[str, str]]:
    """The block of the horizon holds the period, overlaps no other one, and its budget does not rise."""
    stated = marker.body["horizon"]
    block = _span(stated)
    if not block.start <= period.start < period.end <= block.end:
        yield "period", f"{marker.name}: its period does not lie in the block of the horizon that is stated"
    if _overlaps(block, blocks):
        yield "period", f"{marker.name}: its block overlaps another one, so its users would have two budgets"
    if stated["budget"] > blocks.get(block, stated["budget"]):
        yield "budget", f"{marker.name}: the budget of its block was lower before"
    blocks[block] = min(stated["budget"], blocks.get(block, stated["budget"]))


def _overlaps(span: Window, others: Iterable[Window]) -> bool:
    return any(other != span and other.start < span.end and span.start < other.end for other in others)


def _allowances(body: Mapping[str, Any], budgets: dict[str, float]) -> Iterator[str]:
    """What is wrong with the stated allowances. ``budgets``: what was stated before for each period."""
    most = body["epsilon"] + body.get("histogram_epsilon", 0.0)
    if "accounting" not in body and most > body["budget"] + _HALF:
        yield "one window may cost more than the budget of its period"
    key = body["period"]["start"]
    if body["budget"] > budgets.get(key, body["budget"]):
        yield "the budget of its period was lower before; it may not rise within a period"
    budgets[key] = min(body["budget"], budgets.get(key, body["budget"]))


def _faded(markers: list[_Marker], parts: Mapping[Window, object]) -> int:
    """The number of windows, oldest first, of which only the close marker is left: topics keep markers for ever,
    messages do not."""
    whole = [at for at, marker in enumerate(markers) if marker.window in parts or not marker.body["messages"]]
    return whole[0] if whole else len(markers)


def _part(topic: str, body: Mapping[str, Any]) -> str:
    return str({HEXAGON_SPEED: body.get("cell"), SPATIAL_HISTOGRAM: body.get("mechanism"), WINDOW: "close"}[topic])


def _span(stated: Mapping[str, str]) -> Window:
    return Window(*(int(datetime.fromisoformat(stated[end]).timestamp()) for end in ("start", "end")))
