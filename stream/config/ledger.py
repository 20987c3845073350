"""Section ``[ledger]``: the budgets that several feeds have in common."""

from __future__ import annotations

from stream.config.feed import FeedName
from stream.config.section import Section


class LedgerConfig(Section):
    """The ledger that this feed shares with all feeds that name it. Without this section a feed has a ledger of its own."""

    name: FeedName
