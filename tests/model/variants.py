"""Broken release protocols: each is the shipped one with some text exchanged, in Python or in Lua."""

import inspect
import types
from typing import Any, NamedTuple

from stream.protocol import release_protocol


class Variant(NamedTuple):
    """``exchanges``: pairs of texts, each of which stands once in a script or in ``release_protocol.py``.

    What it takes to refute it: ``windows``, ``faults``, whether Redis is ``set_back``, and whether it then
    ``forgets_unpublished`` commits as well. ``feeds``: each has one of the windows; they share a ledger, or have
    ledgers ``apart``. ``sees_others``: whether a worker is shown the close markers of the other feed.
    """

    name: str
    exchanges: tuple[tuple[str, str], ...] = ()
    windows: int = 1
    faults: int = 0
    set_back: bool = False
    forgets_unpublished: bool = False
    feeds: int = 1
    apart: bool = False
    sees_others: bool = True

    def alter(self, text: str) -> str:
        """``text`` with the exchanges that it contains."""
        for old, new in self.exchanges:
            assert text.count(old) <= 1, f"{old!r} stands twice"
            text = text.replace(old, new)
        return text

    def protocol(self) -> type[Any]:
        """The shipped :class:`ReleaseProtocol`, or the altered one."""
        source = inspect.getsource(release_protocol)
        if (altered := self.alter(source)) == source:
            return release_protocol.ReleaseProtocol
        module = types.ModuleType(release_protocol.__name__)
        exec(compile(altered, self.name, "exec"), module.__dict__)
        return module.ReleaseProtocol


SHIPPED = Variant("as shipped")

_CHARGE, _DRAW = "refused = await self.charge(planned.plan)\n", "drawn = await self._draw(planned.plan, rows)\n"
_COMMIT, _INDENT = "await self._commit(planned.plan, drawn)\n", 16 * " "
_EARLY = f"""messages, _ = self.statistics.compose(
{_INDENT}    planned.plan, drawn, await self.store.memory(), await self.ledger.sequence() + 1)
{_INDENT}await self.publisher.publish(messages)
{_INDENT}"""
_LOOK, _CONFIRM = "await self.before_publishing()\n", "await self.publisher.confirm(messages)\n"
_FIRST = "if redis.call('EXISTS', KEYS[1]) == 1 then\n  return 0\nend\n"
_NUMBER, _SPENT = (
    "redis.call('SET', KEYS[5], ARGV[6])",
    "spendings[#spendings + 1], spendings[#spendings + 2] = user, string.format('%.0f', spent)",
)
_DUE = "local due = tonumber(charges[i]) - tonumber(paid[i] or '0')"
_PAID = (
    "if redis.call('HGET', KEYS[4], 'plan') ~= ARGV[5] then\n  return redis.error_reply('CHARGES of "
    "this "
    "window are gone')\nend\n"
)

_LATER, _BEFORE = (
    "tonumber(ARGV[1]) then return redis.error_reply('TURN ' .. planned) end\nlocal stored",
    "if planned and redis",
)
_LOST = "if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 0 end\n"
_RECORDED = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then redis.call('UNLINK', unpack(KEYS, 2)) end"

BROKEN = (
    Variant("plans a window after a later one", ((_LATER, "1/0 then return end\nlocal stored"),), windows=2),
    Variant("plans a window while the one before it is not committed", ((_BEFORE, "if false and redis"),), windows=2),
    Variant("draws before it charges", ((_DRAW, "pass\n"), (_CHARGE, f"{_DRAW}{_INDENT}    {_CHARGE}"))),
    Variant("commits over the bytes of others", ((_FIRST, ""),)),
    Variant("publishes before it commits", ((_COMMIT, _EARLY + _COMMIT),)),
    Variant("increments the number of commits", ((_NUMBER, "redis.call('INCR', KEYS[5])"),), faults=1),
    Variant("increments what a user spent", ((_SPENT, "redis.call('HINCRBY', KEYS[1], user, due)"),), faults=1),
    Variant("charges again what was paid", ((_DUE, "local due = tonumber(charges[i])"),)),
    Variant(
        "charges beyond the budget",
        (("if spent > budget or (block and sum > block) then", "if false then"),),
        windows=2,
    ),
    Variant("does not read its messages back", ((_CONFIRM, "pass\n"),), faults=1),
    Variant("commits what is no longer paid for", ((_PAID, ""),), set_back=True),
    Variant("records a release of which Redis lost the commit", ((_LOST, ""),), set_back=True),
    Variant("does not read the close markers again before it publishes", ((_LOOK, "pass\n"),), set_back=True),
)
"""Each is to be refuted."""
SHARED = SHIPPED._replace(name="as shipped; two feeds share a ledger", windows=2, feeds=2)
BROKEN_SHARED = (
    SHARED._replace(name="two feeds with the same users have ledgers apart", apart=True),
    SHARED._replace(name="looks at the close markers of its own feed only", sees_others=False, set_back=True),
    SHARED._replace(
        name="counts the commits of its own feed only", exchanges=(("if KEYS[6] ~= KEYS[5] then", "if false then"),)
    ),
)
"""Each is to be refuted, too."""
SLOW = Variant(
    "forgets the bytes of a release that Redis does not know",
    ((_RECORDED, "redis.call('UNLINK', unpack(KEYS, 2))"),),
    windows=2,
    set_back=True,
)
"""To be refuted, too, but only among 1.7 million states."""
KNOWN_LIMIT = Variant(
    "as shipped; Redis forgets a commit that is not published", set_back=True, forgets_unpublished=True
)
"""The one loss that is not noticed (docs/known-limits.md): refuted too."""
KNOWN_LIMIT_SHARED = SHARED._replace(
    name="two feeds share a ledger; Redis forgets a commit that is not published",
    set_back=True,
    forgets_unpublished=True,
)
"""The same loss in a shared ledger, where one worker of each feed is enough: refuted too."""
