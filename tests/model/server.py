"""A real Valkey whose whole state is a value: load it, run one request, read the state after it.

States are interned: equal content is the same small integer, however it came about. What a request does to a state is
asked of the server once.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from stream.local.server import RedisServer

Command = tuple[Any, ...]
Content = tuple[tuple[bytes, bytes, Any], ...]
"""(key, type, value) of every key, sorted; so are the elements of hashes and sets."""

_READ = """
local all = {}
redis.call('DEL', 'model-mark')
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = redis.call('LRANGE', key, 0, -1) end
  all[#all + 1] = {key, kind, value}
end
return all
"""
_WRITE = {b"hash": b"HSET", b"set": b"SADD", b"list": b"RPUSH"}
_MARK = (b"SET", b"model-mark", b"")
"""Surrounds the effects of a request in the append-only file."""


class Executed(NamedTuple):
    """What a request did: the state after it, its answers, and the state if the end of the log is replayed once
    more."""

    after: int
    answers: list[Any]
    replayed: int


class StateServer:
    """States of one server, and what requests do to them."""

    def __init__(self, server: RedisServer) -> None:
        (log,) = (Path(server.folder) / "appendonlydir").glob("*.incr.aof")
        self._log = log.open("rb")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(server.url.removeprefix("unix://").partition("?")[0])
        self._contents: list[Content] = []
        self._numbers: dict[Content, int] = {}
        self._executed: dict[tuple[int, tuple[Command, ...]], Executed] = {}
        self._talk([(b"CONFIG", b"SET", b"auto-aof-rewrite-percentage", b"0")])
        self.empty = self._intern([])
        self._held: int | None = None
        """The state that the server is in, if it was loaded and nothing has changed it."""

    def content(self, state: int) -> dict[bytes, Any]:
        """The keys of ``state`` with their values: bytes, dicts (hashes), or tuples of elements."""
        return {key: dict(value) if kind == b"hash" else value for key, kind, value in self._contents[state]}

    def register(self, script: str) -> None:
        """Let requests call ``script`` by its digest."""
        self._talk([(b"SCRIPT", b"LOAD", script.encode())])

    def execute(self, state: int, commands: tuple[Command, ...]) -> Executed:
        """What ``commands`` do to ``state`` in one transaction."""
        if (state, commands) not in self._executed:
            load = [] if state == self._held else self._loading(state)
            self._log.seek(0, os.SEEK_END)
            talk = [*load, _MARK, *commands, _MARK, (b"EVAL", _READ, 0)]
            _, *answers, _, content = self._talk(talk)[len(load) :]
            after = self._intern(content)
            self._held = state if after == state else None  # the order of a hash's fields is that of its history
            replayed = after if after == state else self._replayed(after)
            self._executed[state, commands] = Executed(after, [_answer(answer) for answer in answers], replayed)
        return self._executed[state, commands]

    def _replayed(self, after: int) -> int:
        """``after``, and then once more what the server's log says about the request that led there."""
        _, effects, _ = self._log.read().split(hiredis.pack_command(_MARK))
        reader = hiredis.Reader()
        reader.feed(effects)
        logged = []
        while (command := reader.gets()) is not False:
            logged.append(tuple(command))
        return self._intern(self._talk([*logged, (b"EVAL", _READ, 0)])[-1])

    def _loading(self, state: int) -> list[Command]:
        commands: list[Command] = [(b"FLUSHALL",)]
        for key, kind, value in self._contents[state]:
            parts = (value,) if kind == b"string" else value
            if kind == b"hash":
                parts = [part for pair in value for part in pair]
            commands.append((_WRITE.get(kind, b"SET"), key, *parts))
        return commands

    def _intern(self, read: list[Any]) -> int:
        keys = []
        for key, kind, value in read:
            if kind == b"hash":
                value = tuple(sorted(zip(value[::2], value[1::2], strict=True)))
            elif kind != b"string":
                value = tuple(sorted(value) if kind == b"set" else value)
            keys.append((key, kind, value))
        content = tuple(sorted(keys))
        number = self._numbers.setdefault(content, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
        return number

    def _talk(self, commands: Sequence[Command]) -> list[Any]:
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        reader, answers = hiredis.Reader(), []
        while len(answers) < len(commands):
            answer = reader.gets()
            if answer is False:
                reader.feed(self._socket.recv(1 << 20))
            else:
                answers.append(answer)
        return answers


def _answer(answer: Any) -> Any:
    if not isinstance(answer, hiredis.ReplyError):
        return answer
    return (NoScriptError if str(answer).startswith("NOSCRIPT") else ResponseError)(str(answer))
