"""The feeds whose releases are served, and which of their speeds the configuration says are derived."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from stream.config import Config
from stream.config.feed import derived_speed_note
from stream.serve.operations import get
from stream.serve.responses import JSON, Answers
from stream.serve.window_store import View


class Feeds:
    """Handler for the list of feeds. A configuration describes its own feed only; of others nothing is known but the
    releases."""

    def __init__(self, config: Config, view: View, answers: Answers) -> None:
        self._view, self._answers = view, answers
        self._configured = config.feed.name
        self._described = _description(
            config.feed.name, config.feed.derivation, derived_speed_note(config.relation, config.feed.speeds)
        )

    @get("/feeds", "listFeeds", {JSON: "FeedList"}, tag="Feeds")
    async def listed(self, request: web.Request) -> web.Response:
        """Feeds, and which of their speeds are derived from positions."""
        names = sorted({self._configured} | self._view.feeds())
        feeds = [self._described if name == self._configured else _description(name, None, None) for name in names]
        body = msgspec.json.encode({"feeds": feeds})
        return await self._answers.ready(request, body, JSON)


def _description(name: str, derived_speeds: str | None, note: str | None) -> dict[str, Any]:
    return {"feed": name, "derived_speeds": derived_speeds, "note": note}
