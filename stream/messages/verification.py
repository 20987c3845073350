"""Checks releases as a third party can: messages, close markers, their chain and signatures, and what they promise.

Pure: it is given records in the order in which they were published, and says what contradicts what. It cannot see that
noise was drawn, nor that charges were written before: those are claims about the operator's machine
(:data:`UNCHECKED`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from stream.messages.chain import SIGNATURE, Succession, signed_by, value_digest
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, digest, identifier, validator
from stream.windows import Window, utc_text

TOPICS = (HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW)
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
        return _window(self.body)

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
        if record.topic not in TOPICS:
            return
        try:
            body = msgspec.json.decode(record.value)
        except (msgspec.DecodeError, RecursionError):
            body = None
        if body is None or not validator(record.topic).is_valid(body):
            self._found("schema", "", f"{record.where}: this is no message of {record.topic}")
            return
        feed, window = body["feed"], _window(body)
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
        numbers = [marker.body["sequence"] for marker in known.markers]
        if numbers != sorted(numbers):
            self._found("order", feed, "the close markers do not stand in the order of their numbers")
        markers = sorted(known.markers, key=lambda marker: int(marker.body["sequence"]))
        faded = _faded(markers, known.parts)
        for marker in markers[faded:]:
            self._check_messages(feed, marker, known.parts.pop(marker.window, {}))
        for window in sorted(known.parts):
            self._found("unmarked", feed, f"window {utc_text(window.start)} has messages and no close marker")
        for before, after in zip([None, *markers], markers, strict=False):
            self._check_link(feed, before, after)
        self._check_signatures(feed, markers)
        self._check_promises(feed, markers)
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

    def _check_messages(self, feed: str, marker: _Marker, parts: dict[str, bytes]) -> None:
        body = marker.body
        values = [parts[ce_id] for ce_id in sorted(parts)]
        if len(values) != body["messages"]:
            self._found(
                "messages", feed, f"{marker.name} has {len(values)} messages, its close marker says {body['messages']}"
            )
        elif digest(values) != body["digest"]:
            self._found(
                "digest", feed, f"{marker.name}: the messages are not those that its close marker names by their digest"
            )
        histograms = 0.0
        for part in map(msgspec.json.decode, values):
            if "mechanism" in part:
                histograms += part["epsilon"]
            elif (part["epsilon"], part["relation"]) != (body["epsilon"], body["relation"]):
                self._found(
                    "epsilon",
                    feed,
                    f"{marker.name}: a message states another epsilon or relation than its close marker",
                )
                break
        if histograms > body.get("histogram_epsilon", 0.0) + _HALF * max(1, len(values)):
            self._found(
                "epsilon", feed, f"{marker.name}: its histograms state more epsilon together than its close marker"
            )

    def _check_link(self, feed: str, before: _Marker | None, after: _Marker) -> None:
        body = after.body
        if before is None:
            if body["sequence"] == 1 and body.get("previous") is not None:
                self._found("chain", feed, f"{after.name} names a close marker before the first")
            return
        earlier = before.body
        if body["generation"] != earlier["generation"]:
            self._found(
                "generation",
                feed,
                f"{after.name} is of another ledger than {before.name}: budgets were granted a second time",
            )
        if body["sequence"] == earlier["sequence"]:
            self._found("twice", feed, f"{before.name} and {after.name} have the same number")
            return
        if body["sequence"] > earlier["sequence"] + 1:
            left_out = body["sequence"] - earlier["sequence"] - 1
            self._found(
                "left-out", feed, f"{left_out} close marker(s) between {before.name} and {after.name} are left out"
            )
            return
        begins = "previous" not in earlier and body.get("previous") is None
        if not begins and body.get("previous") != before.digest:
            self._found(
                "chain",
                feed,
                f"{after.name} does not continue from {before.name} as it is here: one of them was changed",
            )
        if after.window.start < before.window.end:
            self._found(
                "time",
                feed,
                f"{after.name} begins before the end of {before.name}: windows are released in the order of their time",
            )

    def _check_signatures(self, feed: str, markers: list[_Marker]) -> None:
        accepted = set(self.trusted)
        last: str | None = None
        for marker in markers:
            signer = marker.body.get("signer")
            if signer is None:
                if last is not None or self.trusted:
                    self._found("signature", feed, f"{marker.name} is not signed")
                continue
            if not signed_by(signer, marker.value, marker.signature or ""):
                self._found("signature", feed, f"{marker.name}: the signature is missing or not of this content")
            succession = _succession(marker.body)
            endorsed = succession is not None and succession.endorses(signer)
            if succession is not None and endorsed and succession.signer in accepted:
                accepted.add(signer)
            if last not in (None, signer) and not (succession is not None and endorsed and succession.signer == last):
                self._found(
                    "signature",
                    feed,
                    f"{marker.name} is signed by another key than the one before, which did not endorse it",
                )
            if self.trusted and signer not in accepted and signer != last:
                self._found(
                    "signature", feed, f"{marker.name} is signed by {signer}, which is none of the keys that you trust"
                )
            last = signer

    def _check_promises(self, feed: str, markers: list[_Marker]) -> None:
        budgets: dict[str, float] = {}
        periods: dict[Window, str] = {}
        blocks: dict[Window, float] = {}
        for marker in markers:
            body, name = marker.body, marker.name
            period = Window(_epoch(body["period"]["start"]), _epoch(body["period"]["end"]))
            if not period.start <= marker.window.start < marker.window.end <= period.end:
                self._found("period", feed, f"{name} does not lie in the period that its close marker states")
            crossed = [
                other for other in periods if other != period and other.start < period.end and period.start < other.end
            ]
            if crossed:
                self._found(
                    "period", feed, f"{name}: its period overlaps another one, so its users would have two budgets"
                )
            periods[period] = name
            if "horizon" in body:
                self._check_block(feed, marker, blocks)
            for problem in _allowances(body, budgets):
                self._found("budget", feed, f"{name}: {problem}")

    def _check_block(self, feed: str, marker: _Marker, blocks: dict[Window, float]) -> None:
        """The block of the horizon holds the period, overlaps no other one, and its budget does not rise."""
        stated, period = marker.body["horizon"], marker.body["period"]
        block = Window(_epoch(stated["start"]), _epoch(stated["end"]))
        if not block.start <= _epoch(period["start"]) < _epoch(period["end"]) <= block.end:
            self._found(
                "period", feed, f"{marker.name}: its period does not lie in the block of the horizon that is stated"
            )
        if any(other != block and other.start < block.end and block.start < other.end for other in blocks):
            self._found(
                "period", feed, f"{marker.name}: its block overlaps another one, so its users would have two budgets"
            )
        if stated["budget"] > blocks.get(block, stated["budget"]):
            self._found("budget", feed, f"{marker.name}: the budget of its block was lower before")
        blocks[block] = min(stated["budget"], blocks.get(block, stated["budget"]))


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


def _succession(body: Mapping[str, Any]) -> Succession | None:
    return Succession(**body["succeeds"]) if "succeeds" in body else None


def _part(topic: str, body: Mapping[str, Any]) -> str:
    return str({HEXAGON_SPEED: body.get("cell"), SPATIAL_HISTOGRAM: body.get("mechanism"), WINDOW: "close"}[topic])


def _window(body: Mapping[str, Any]) -> Window:
    return Window(_epoch(body["window"]["start"]), _epoch(body["window"]["end"]))


def _epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
