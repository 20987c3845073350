"""What docs/operators.md says of a user key that is lost or known to others: a new key needs a new name, and grants
nothing twice."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.ingestion.pseudonyms import KEY_BYTES, Pseudonyms, key_fingerprint
from stream.storage.ledger import BeforeBirthError, Ledger
from stream.storage.row_store import RowStore, StateError
from stream.windows import Horizon, Slotting

DAY, START = 86_400, 1_490_572_800
"""2017-03-27 00:00 UTC, on which a block of 28 days begins."""
OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES


@pytest.mark.parametrize("horizon", [None, Horizon(timedelta(days=28), 10)])
async def test_a_new_key_needs_a_new_name_and_grants_no_budget_twice(horizon: Horizon | None, redis: Redis) -> None:
    slotting = Slotting(timedelta(hours=1), timedelta(days=1), "UTC", horizon)
    await RowStore(redis, "bus").claim_key(key_fingerprint(OLD))
    before, one = Ledger(redis, "bus"), np.array([1])
    user = np.array([Pseudonyms(OLD)["bus 7"]], dtype=np.uint64)
    running = slotting.period_of(START + DAY)
    await before.charge(running.start, running, await before.start_generation(birth=0), user, one, 10)
    with pytest.raises(StateError, match="another user key"):
        await RowStore(redis, "bus").claim_key(key_fingerprint(NEW))  # whenever it is tried

    await RowStore(redis, "bus-2").claim_key(key_fingerprint(NEW))
    after, changed = Ledger(redis, "bus-2"), START + DAY + DAY // 2
    generation = await after.start_generation(birth=changed)
    user = np.array([Pseudonyms(NEW)["bus 7"]], dtype=np.uint64)
    with pytest.raises(BeforeBirthError):
        await after.charge(running.start, running, generation, user, one, 10)
    following = slotting.period_of(START + 2 * DAY if horizon is None else START + 28 * DAY)
    assert await after.releases_since(slotting) <= following.start
    assert not len(await after.charge(following.start, following, generation, user, one, 10))
    if horizon is not None:
        within = slotting.period_of(START + 2 * DAY)
        with pytest.raises(BeforeBirthError):
            await after.charge(within.start, within, generation, user, one, 10)
