"""Mutates inputs: bytes, and JSON by its structure. Everything follows from one seeded generator."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

NUMBERS = (
    b"0", b"-0", b"-0.0", b"1", b"-1", b"0.5", b"1e308", b"-1e308", b"1e309", b"-1E400", b"1e-400", b"5e-324",
    b"1.7976931348623157e308",
    b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551615",
    b"18446744073709551616", b"4611686018427387904", b"2147483647", b"2147483648", b"4294967296", b"253402300799999",
    b"253402300800000",
    b"-62135596800000", b"946684799999", b"1e306", b"90", b"-90", b"90.00000000000001", b"180", b"-180.1", b"1e5",
    b"32768", b"1e-300",
    b"9" * 400, b"-" + b"9" * 400, b"0." + b"3" * 400, b"1" + b"0" * 307, b"NaN", b"Infinity", b"-Infinity", b"nan",
    b"01", b"+1", b"1.", b".5", b"0x10", b"1_000", b"1e", b"--1",
)  # fmt: skip
"""Numbers as JSON writes them, at the edges of types and beyond them, and texts that only look like numbers."""
TEXTS = (
    "", " ", "a", "\0", "\ud800", "\udfff\ud800", "é", "💥", "\u202e", "x" * 255, "x" * 256, "é" * 129, "null", "-", ".",  # noqa: E501
    "..",
    "2017-03-21T07:00:00-05:00", "2017-03-21T12:00:00Z", "2017-03-21t12:00:00z", "2017-03-21T12:00:00",
    "2017-03-21 12:00:00+00:00",
    "2017-03-21T12:00:00.123456789Z", "2016-12-31T23:59:60Z", "2017-02-30T00:00:00Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59.999999Z", "0000-01-01T00:00:00Z", "２０１７-03-21T12:00:00Z", "2017-03-21T24:00:00Z",
    "2017-W12-2T00:00:00Z",
    "1490097600000", "1e400", "NaN", "87489e342ffffff", "000000000000000", "fffffffffffffff", "8f489e342ffffff",
    "87489E342FFFFFF",
    "sha256:" + "0" * 64, "00000000-0000-4000-8000-000000000000", "values", "participation", "grid", "partition",
    "euler", "tree",
    "%s%n", "{0}", "<script>", "'; --", "../../etc/passwd", "\r\nX: y", "a,b", '"', "\\", "=1+1",
)  # fmt: skip
LITERALS = (b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b'{"":{}}', b"[null]", b"")
NAMES = (
    "user",
    "time",
    "lat",
    "lng",
    "speed",
    "value",
    "window",
    "feed",
    "topic",
    "headers",
    "",
    "a",
    "__proto__",
    "x" * 300,
    "\ud800",
)
"""Names of fields for renaming and adding; targets add those of their own inputs."""
LARGE = (
    b"9" * 5000,
    b'"' + b"x" * 70_000 + b'"',
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 3000,
    b"[" + b"0," * 9000 + b"0]",
)
"""Tokens that are long or deep; they are rare, because they take long to read."""
_RARE = 0.003
_TOKENS = (*NUMBERS, *LITERALS, *LARGE)
_MARK = re.compile(rb'"\\u0000@(\d+)@"')
_FRAGMENTS = (
    b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\r", b"\n", b"\r\n\r\n", b"\t", b'"',
    b"'", b"\\", b"\\u0000",
    b"\\ud800", b"{", b"}", b"[", b"]", b",", b":", b";", b"=", b"%", b"%00", b"-", b"1e999", b"NaN", b"\x1f\x8b\x08",
    b"PAR1", b"PK\x03\x04",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\x00" * 8,
)  # fmt: skip


class Mutator:
    """Changes inputs at random. ``names``: further names of fields."""

    def __init__(self, rng: random.Random, names: Sequence[str] = ()) -> None:
        self.rng = rng
        self._names = (*NAMES, *names)

    def octets(self, data: bytes, times: int = 0) -> bytes:
        """``data`` after ``times`` changes of its bytes, by default one to four."""
        rng = self.rng
        for _ in range(times or rng.choice((1, 1, 1, 2, 2, 3, 4))):
            at = rng.randrange(len(data) + 1)
            to = min(len(data), at + rng.choice((1, 1, 2, 4, 8, 64)))
            match rng.randrange(8):
                case 0 | 1:
                    data = data[:at] + bytes(255 & (octet ^ 1 << rng.randrange(8)) for octet in data[at:to]) + data[to:]
                case 2:
                    data = data[:at] + rng.randbytes(to - at) + data[to:]
                case 3:
                    data = data[:at] + data[to:]
                case 4:
                    data = data[:at] + data[at:to] * rng.choice((2, 3, 17)) + data[to:]
                case 5:
                    data = data[:at] + rng.choice(_FRAGMENTS) + data[at:]
                case 6:
                    data = data[:at] + _TOKENS[self._token()] + data[to:]
                case _:
                    data = data[:at] if rng.random() < 0.3 else data[:at] + data[at:][::-1][: to - at] + data[to:]
        return data

    def scalar(self) -> Any:
        """A text, or a token that stands for itself in :meth:`json`."""
        rng = self.rng
        if rng.random() < 0.4:
            return rng.choice(TEXTS)
        return f"\0@{self._token()}@"

    def _token(self) -> int:
        frequent = len(_TOKENS) - len(LARGE)
        return self.rng.randrange(frequent, len(_TOKENS)) if self.rng.random() < _RARE else self.rng.randrange(frequent)

    def tree(self, node: Any) -> Any:
        """A copy of a decoded JSON value with one place changed."""
        rng = self.rng
        if isinstance(node, dict) and node and rng.random() < 0.95:
            return self._object(node)
        if isinstance(node, list) and node and rng.random() < 0.9:
            return self._array(node)
        if isinstance(node, int | float) and not isinstance(node, bool) and rng.random() < 0.4:
            return rng.choice(
                (node + 1, node - 1, -node, node * 1e9, node / 3, int(node), float(node), str(node), [node])
            )
        if isinstance(node, str) and node and rng.random() < 0.3:
            at = rng.randrange(len(node))
            return node[:at] + rng.choice(("", "\0", "0", "9", "z", "-", "\ud800", "\udc00", node)) + node[at + 1 :]
        return self.scalar()

    def _object(self, node: dict[str, Any]) -> dict[str, Any]:
        rng, items = self.rng, dict(node)
        key, change = rng.choice(list(items)), rng.random()
        if change < 0.75:
            items[key] = self.tree(items[key])
        elif change < 0.85:
            del items[key]
        elif change < 0.92:
            items[self._name(key)] = items.pop(key)
        else:
            items[rng.choice(self._names)] = rng.choice((self.scalar(), items[key]))
        return items

    def _name(self, name: str) -> str:
        """Another name, or ``name`` with half a surrogate pair in it."""
        rng, at = self.rng, self.rng.randrange(len(name) + 1)
        half = chr(rng.randrange(0xD800, 0xE000))
        return name[:at] + half + name[at:] if rng.random() < 0.2 else rng.choice(self._names)

    def _array(self, node: list[Any]) -> list[Any]:
        rng, at = self.rng, self.rng.randrange(len(node))
        change = rng.random()
        if change < 0.6:
            return [*node[:at], self.tree(node[at]), *node[at + 1 :]]
        if change < 0.75:
            return node[:at] + node[at + 1 :]
        if change < 0.9:
            return [*node[:at], *[node[at]] * rng.choice((2, 3, 50)), *node[at + 1 :]]
        return [*node[:at], self.scalar(), *node[at:]]

    def json(self, tree: Any) -> bytes:
        """``tree`` with one to three places changed, as JSON or nearly; sometimes its bytes are changed as well."""
        rng = self.rng
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
            tree = self.tree(tree)
        text = json_of(tree, ascii_only=rng.random() < 0.7)
        return self.octets(text) if rng.random() < 0.25 else text


def json_of(tree: Any, *, ascii_only: bool = True) -> bytes:
    """JSON of a tree in which :meth:`Mutator.scalar` has put tokens."""
    text = json.dumps(tree, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return _MARK.sub(_token_of, text) if b"\\u0000@" in text else text


def _token_of(mark: re.Match[bytes]) -> bytes:
    return _TOKENS[int(mark[1]) % len(_TOKENS)]
