"""Two feeds with the same users that share a ledger, and what their releases cost each user, counted without the
ledger."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from redis.asyncio import Redis

from stream.config import Config
from stream.local.kafka import REPO_ROOT
from stream.statistics.plan import Plan, decode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, random_rows
from tests.support.closing import Collected, protocol_of
from tests.support.stored_rows import store

LEDGER = "city"
BUDGET = 2_000_000
"""µε: with an epsilon of 1.5, a user who has paid for one window has no whole grant left for another."""
PERIOD = "2017-03-21"


def sharing(folder: Path, name: str = "", ledger: str = LEDGER, **overrides: Any) -> tuple[Config, Config]:
    """The configurations of two feeds that share a ledger; their names begin with ``name``."""
    settings = {
        "privacy.epsilon": 1.5,
        "privacy.budget": BUDGET / 1e6,
        "ledger.name": ledger,
        "speed.post_processing": [],
        **PLAINLY_PLANNED,
    }
    feeds = [
        bus_config(folder, **(settings | {"feed.name": f"{name}{feed}", "feed.topic": f"{name}{feed}"} | overrides))
        for feed in ("bus", "tram")
    ]
    return feeds[0], feeds[1]


def sharing_file(folder: Path) -> Path:
    """The shipped bus-fleet.toml, which shares the ledger."""
    text, file = (REPO_ROOT / "config" / "bus-fleet.toml").read_text(encoding="utf-8"), folder / "bus.toml"
    file.write_text(text.replace("[hexagons]", f'[ledger]\nname = "{LEDGER}"\n\n[hexagons]'), encoding="utf-8")
    return file


async def stored(redis: Redis, config: Config, seed: int) -> None:
    """Rows of the same twelve users in every feed."""
    await store(redis, config, random_rows(seed, 150))


async def each_stored(redis: Redis, *feeds: Config) -> None:
    """A window of each feed, with rows of its own."""
    for seed, config in enumerate(feeds):
        await stored(redis, config, seed)


def charges_of(plan: Plan) -> Counter[int]:
    """What every user pays for a plan."""
    users, charges = plan.charged_users()
    return Counter(dict(zip(users.tolist(), charges.tolist(), strict=True)))


async def drawn(redis: Redis, config: Config, slot: int = SLOT, hook: Any = None) -> Counter[int]:
    """Release a window; returns what each user pays for the plan from which it was drawn. ``hook``: called after each
    step."""
    plans: list[Plan] = []

    async def look(step: str) -> None:
        if step == "draw":
            plans.append(decode_plan(await redis.get(FeedKeys.of(config).plan(slot))))
        if hook is not None:
            await hook(step)

    await protocol_of(redis, config, Collected(), after_step=look).close(slot)
    return charges_of(plans[-1])


async def spent(redis: Redis, config: Config) -> Counter[int]:
    """What the ledger says each of the twelve users spent."""
    users = np.arange(1, 13, dtype=np.uint64)
    amounts = await Ledger.of(redis, config).spent(PERIOD, users, besides=0)
    return Counter(dict(zip(users.tolist(), amounts.tolist(), strict=True)))
