"""JSON that holds several events: arrays, and notifications of NGSI-LD context brokers. Pure.

An element is cut out without being read, so an element that is no event, or that JSON does not know (NaN), is refused
alone. Beside it, which message each event of a batch is of, and which are refused.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from dpcore.arrays import IntArray

MAX_ARRAY_BYTES = 1 << 18
"""Largest size of a message with several events; a fleet of 1 700 canonical events has about 170 kB."""
MAX_EVENTS = 5_000
"""Most events of a message."""
_SPACE = b" \t\r\n"
_KEPT, _HEAD, _PIECE = 1 << 10, 1 << 12, 1 << 14
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+("?)|[\[\]{},]', re.DOTALL)
"""A string, empty while its end is missing, or a mark of structure. Every quotation mark begins a match."""

_MEMBER = re.compile(rb'"(type|data)"\s*:\s*(.*)', re.DOTALL)

_raw_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Notification(msgspec.Struct):
    type: Literal["Notification"]
    data: list[msgspec.Raw]


_notification = msgspec.json.Decoder(_Notification).decode


def may_hold_several(message: bytes) -> bool:
    """Whether the message may be an array or a notification, judged by its first and last byte."""
    text = message.strip(_SPACE)
    return (text[:1] == b"[" and text[-1:] == b"]") or (text[:1] == b"{" and b'"Notification"' in text)


def elements(message: bytes, most: float = math.inf) -> list[bytes] | None:
    """The elements of a JSON array, or of the ``data`` of a notification; None for anything else, and if there are
    none.

    ``most``: of an array that is no JSON, nothing is read behind so many elements.
    """
    text = message.strip(_SPACE)
    values = _whole(text)
    if values is None:
        return _cut(text if text[:1] == b"[" else _data_of(text), most)
    return list(map(bytes, values)) or None


def first_element(message: bytes) -> bytes:
    """The first of the :func:`elements`, however the others are formed; nothing if it is unknown after 4 KiB."""
    text = message.strip(_SPACE)
    values = _whole(text)
    if values is None:
        values = Cutter(_HEAD).feed(text[:_HEAD]) if text[:1] == b"[" else []
    return bytes(values[0]) if values else b""


def _whole(text: bytes) -> list[msgspec.Raw] | list[bytes] | None:
    """The elements of an array or notification that is JSON; None for another text."""
    try:
        return _raw_elements(text) if text[:1] == b"[" else _notification(text).data
    except (msgspec.DecodeError, RecursionError):
        return None


def _data_of(notification: bytes) -> bytes:
    """The array of a notification of which an element is no JSON; nothing if the text is no notification."""
    members = _cut(b"[" + notification[1:-1] + b"]", MAX_EVENTS) if notification[-1:] == b"}" else None
    values = {match[1]: match[2] for match in map(_MEMBER.fullmatch, members or ()) if match}
    data = values.get(b"data", b"")
    return data if values.get(b"type") == b'"Notification"' and data[:1] == b"[" else b""


def _cut(text: bytes, most: float) -> list[bytes] | None:
    """The elements of one array, however they are formed, up to one that exceeds ``most``; None if the array does not
    end with the text. Nothing is read behind the end of the first array.
    """
    cutter, values = Cutter(len(text)), list[bytes]()
    for at in range(0, len(text), _PIECE):
        values += cutter.feed(text[at : at + _PIECE])
        if cutter.begun > 1 or len(values) > most:
            break
    is_one = cutter.begun == 1 and (cutter.is_between or len(values) > most)
    return values if values and is_one else None


class Cutter:
    """Cuts text into JSON objects, as the text comes; of an array, into its elements.

    ``longest``: of a longer value only the first 1 KiB are returned, because memory is bounded.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._text = b""
        self._begin = self._at = 0
        """Where in ``_text`` the current value begins, and up to where it was searched."""
        self._depth = 0
        self._in_array = self._skipping = False
        self.begun = 0
        """Number of values outside of any array, and arrays, that were begun."""

    @property
    def is_between(self) -> bool:
        """Whether everything that was begun is complete."""
        return self._depth == 0

    @property
    def is_skipping(self) -> bool:
        """Whether the rest of a value that is too long is being left out."""
        return self._skipping

    @property
    def kept_bytes(self) -> int:
        """Bytes of the text that are kept, because their value is not complete."""
        return len(self._text)

    def feed(self, text: bytes) -> list[bytes]:
        """The values that are complete with ``text``, which continues the text before it."""
        self._text = self._text[self._begin :] + text
        self._at -= self._begin
        self._begin = 0
        values: list[bytes] = []
        at = self._at
        for token in _TOKEN.finditer(self._text, at):
            mark = token[0]
            if mark[:1] == b'"':
                if not token[1]:
                    at = token.start()
                    break
            else:
                self._take(mark, token.start(), values)
            at = token.end()
        else:
            at = len(self._text)
        self._at = at
        if at - self._begin > self._longest or len(self._text) - self._begin > self._longest + len(text):
            self._give_up(values)
        elif self._depth == 0 or self._skipping:
            self._begin = at
        return values

    def rest(self) -> list[bytes]:
        """The element that is not complete when the text ends, if there is one."""
        left = self._text[self._begin :].strip(_SPACE)
        return [left] if left and self._depth and not self._skipping else []

    def _take(self, mark: bytes, at: int, values: list[bytes]) -> None:
        outer = 1 if self._in_array else 0
        if mark in b"[{":
            if self._depth == 0:
                self.begun += 1
                self._in_array = mark == b"["
                self._begin = at + self._in_array
            self._depth += 1
        elif mark == b",":
            if self._depth == outer == 1:
                self._end(at, values)
        elif self._depth:
            self._depth -= 1
            if self._depth == 0:
                self._end(at + (not self._in_array), values)

    def _end(self, at: int, values: list[bytes]) -> None:
        value = self._text[self._begin : at].strip(_SPACE)
        self._begin = at + 1 if self._depth else at
        if value and not self._skipping:
            values.append(value)
        self._skipping = False

    def _give_up(self, values: list[bytes]) -> None:
        """Return the beginning of a value that is too long, and leave out the rest of it."""
        if not self._skipping and self._depth:
            values.append(self._text[self._begin : self._begin + _KEPT])
        self._skipping = self._depth > 0
        if self._at < len(self._text):  # within a string, of which only its last escape matters
            string = self._text[self._at :]
            escaped = (len(string) - len(string.rstrip(b"\\"))) % 2
            self._text, self._at = b'"' + b"\\" * escaped, 0
        self._begin = self._at


@dataclass
class Leading:
    """Fixes of the first messages of a batch. ``is_cut``: the message after them was tried, and cannot be decoded."""

    fixes: list[Any]
    is_cut: bool = False


@dataclass
class Read:
    """Events as they were read. ``index``: the event of each fix. ``refused``: codes by number of the event."""

    fixes: list[Any] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    arrays: dict[int, int] = field(default_factory=dict)
    """Number of events of each message with an array or a region, by message."""
    corners: dict[int, int] = field(default_factory=dict)
    """The corner for which a message is refused as a whole, by number of the event; -1 without one."""
    events: int = 0
    messages: int = 0

    def add(self, message: int, begin: int, elements: "Read") -> None:
        """Add the elements of a message, the first of which is event ``begin``."""
        self.fixes += elements.fixes
        self.index += [begin + at for at in elements.index]
        self.refused |= {begin + at: code for at, code in elements.refused.items()}
        self.arrays[message] = elements.events

    def places(self) -> tuple[IntArray, IntArray]:
        """The message of each event, and its index in the array or region of the message; -1 without one."""
        counts, of_array = np.ones(self.messages, dtype=np.int64), np.zeros(self.messages, dtype=bool)
        counts[list(self.arrays)] = list(self.arrays.values())
        of_array[list(self.arrays)] = True
        message = np.repeat(np.arange(self.messages), counts)
        element = np.arange(self.events) - (np.cumsum(counts) - counts)[message]
        element = np.where(of_array[message], element, -1)
        element[list(self.corners)] = list(self.corners.values())
        return message, element
