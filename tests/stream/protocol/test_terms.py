"""Who may be charged in a period, and on which terms. A ledger releases no window of a period that began before its
birth, and is bound to what defines users and periods: others would grant a second budget. The terms on which a period
was first charged hold until its end, and those of a window's plan and slots until it is released. A block of a horizon
that is spent silences users to its end. Real Redis."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from redis.asyncio import Redis
from typer.testing import Result

from dpcore.accounting import epsilon_of_rho
from stream.app.doctor import ledger_finding
from stream.config import Config
from stream.ingestion.pseudonyms import key_fingerprint, load_user_key
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, Message
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.protocol.close_process import close_windows
from stream.protocol.ledger_check import verify_ledger
from stream.protocol.release_protocol import NOBODY, PLAN_ATTEMPTS
from stream.statistics.plan import Plan, PlanError, encode_plan
from stream.storage.keys import FeedKeys
from stream.storage.ledger import BeforeBirthError, Ledger, LedgerError, TermsError
from stream.storage.row_store import RowStore
from stream.windows import Period
from tests.support import hourly
from tests.support.builders import (
    PLAINLY_PLANNED,
    SLOT,
    SMALL,
    bus_config,
    located_rows,
    random_rows,
    riders,
    riders_config,
    with_histograms,
    zcdp_config,
)
from tests.support.closing import Collected, close_until, closed, protocol_of, refused
from tests.support.command import run
from tests.support.releasing import verified
from tests.support.stored_rows import due, rows_in, store
from tests.support.topics_reader import read_all

HOUR, DAY = 3600, 86_400
TODAY, TOMORROW = "2017-03-21", "2017-03-22"


async def release(
    redis: Redis, config: Config, slot: int, rows: np.ndarray | None = None, **hooks: Any
) -> list[Message]:
    """Messages of one window of the same twelve users."""
    await Ledger(redis, config.feed.name).start_generation(birth=0)
    stored = MemoryRows({slot: random_rows(slot, 200, slot=slot) if rows is None else rows})
    return await closed(redis, config, slot, rows=stored, **hooks)


async def most_spent(redis: Redis, config: Config, period: str) -> int:
    users = np.arange(1, 13, dtype=np.uint64)
    return int((await Ledger(redis, config.feed.name).spent(period, users, besides=0)).max())


def marker(messages: list[Message]) -> dict[str, Any]:
    return json.loads(messages[-1].value)


def pure(tmp_path: Path, budget: float) -> Config:
    return riders(tmp_path, **{"privacy.epsilon": 2.0, "privacy.budget": budget})


def zcdp(tmp_path: Path, budget: float) -> Config:
    return zcdp_config(
        tmp_path, 0.05, 0.025 * budget, **SMALL, **{"participation.weight": "user", "participation.cells_per_user": 4}
    )


@pytest.mark.parametrize("config_of", [pure, zcdp])
async def test_a_budget_raised_in_a_period_holds_from_the_next_one_on_and_every_marker_says_what_holds(
    redis, tmp_path, config_of
):
    """Close markers state B for the period. A doubled budget would grant B again to users who have spent it."""
    low, high = config_of(tmp_path, 2.0), config_of(tmp_path, 4.0)
    first = marker(await release(redis, low, SLOT))
    again = marker(await release(redis, high, SLOT + HOUR))
    assert await most_spent(redis, low, TODAY) <= low.privacy.ledger_budget
    assert first["budget"] == again["budget"] == low.privacy.budget
    assert again.get("rho_budget") == first.get("rho_budget")
    later = [marker(await release(redis, high, SLOT + DAY + hour * HOUR)) for hour in (0, 1)]
    assert [body["budget"] for body in later] == [high.privacy.budget] * 2
    assert low.privacy.ledger_budget < await most_spent(redis, high, TOMORROW) <= high.privacy.ledger_budget
    if low.privacy.accounting == "zcdp":
        assert first["budget"] == epsilon_of_rho(low.privacy.ledger_budget, 1e-6)


async def test_a_lowered_budget_holds_at_once_and_cannot_be_raised_again_before_the_period_is_over(redis, tmp_path):
    for hour, (budget, holds) in enumerate(((8.0, 8.0), (4.0, 4.0), (8.0, 4.0))):
        assert marker(await release(redis, pure(tmp_path, budget), SLOT + hour * HOUR))["budget"] == holds
    assert await most_spent(redis, pure(tmp_path, 4.0), TODAY) <= 4_000_000


async def changed_meanwhile(redis: Redis, config: Config, slot: int, field: str, value: int, **rows: Any) -> Any:
    """Messages of a window after whose first plan a term of its period is changed; it must be planned twice."""
    seen: list[str] = []

    async def meanwhile(step: str) -> None:
        seen.append(step)
        if step == "plan" and seen.count("plan") == 1:
            await redis.hset(FeedKeys.of(config).terms(TODAY), field, value)

    messages = await release(redis, config, slot, after_step=meanwhile, **rows)
    assert seen.count("plan") == 2, "the first plan was refused"
    return messages


async def test_a_worker_with_the_old_higher_budget_is_held_to_the_lower_one(redis, tmp_path):
    """The period is charged under a lower one after the window was planned. The script decides, not the worker's
    configuration."""
    low, high = pure(tmp_path, 2.0), pure(tmp_path, 4.0)
    await release(redis, high, SLOT)
    lowered = await changed_meanwhile(redis, high, SLOT + 2 * HOUR, "budget", low.privacy.ledger_budget)
    assert await most_spent(redis, high, TODAY) <= low.privacy.ledger_budget
    assert marker(lowered)["budget"] == 2.0


def histograms(messages: list[Message]) -> int:
    return sum(message.topic == SPATIAL_HISTOGRAM for message in messages)


@pytest.mark.parametrize(("relation", "released"), [("values", [0, 0, 1, 0, 0]), ("participation", [0, 1, 1, 0, 1])])
async def test_histograms_switched_on_under_values_begin_with_the_next_period_and_under_participation_at_any_time(
    redis, tmp_path, relation, released
):
    """Exact losses depend on which other users took part; admission to a histogram must not depend on that. Under
    participation a charge depends on the user's own data alone, whatever is released."""
    config = with_histograms(relation, tmp_path, ["ug"])
    alone = config.model_copy(update={"histogram": None})
    slots = [SLOT, SLOT + HOUR, SLOT + DAY, SLOT + DAY + HOUR, SLOT + DAY + 2 * HOUR]
    assert released == [
        histograms(await release(redis, setting, slot, located_rows(slot, 200, slot=slot)))
        for setting, slot in zip([alone, config, config, alone, config], slots, strict=True)
    ]
    assert await most_spent(redis, config, TOMORROW) > config.histogram_grant


async def test_histograms_planned_before_exact_losses_were_charged_elsewhere_are_planned_again_without(redis, tmp_path):
    config, rows = with_histograms("values", tmp_path, ["ug"]), located_rows(2, 200)
    assert histograms(await changed_meanwhile(redis, config, SLOT, "counts", 1, rows=rows)) == 0


async def test_charges_for_histograms_are_refused_in_a_period_whose_charges_followed_from_counts(redis):
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation(birth=0)
    charged = generation, np.array([7], dtype=np.uint64), np.array([1]), 10
    p, q = (Period(SLOT, SLOT + DAY, name) for name in "pq")
    await ledger.charge(SLOT, p, *charged, basis="counts")
    with pytest.raises(TermsError, match="the period after p"):
        await ledger.charge(SLOT + HOUR, p, *charged, basis="histograms")
    assert await ledger.total("p") == (1, 1)
    await ledger.charge(SLOT + HOUR, q, *charged, basis="histograms")


LEDGER = FeedKeys("bus").ledger("2017-03-21")


async def refusing(plan: Plan) -> np.ndarray:
    """Before every charge, another window spends the budget of one of the users."""
    return plan.charged_users()[0][:1]


async def test_a_window_whose_users_are_spent_elsewhere_again_and_again_is_left_for_later_undrawn(redis, tmp_path):
    config, steps = bus_config(tmp_path), []
    await store(redis, config, random_rows(6, 120))
    publisher = Collected()
    protocol = protocol_of(redis, config, publisher, after_step=steps.append)
    object.__setattr__(protocol, "charge", refusing)
    with pytest.raises(LedgerError, match=f"during {PLAN_ATTEMPTS} plans"):
        await protocol.close(SLOT)
    assert steps == ["seal", "read", *["plan"] * (PLAN_ATTEMPTS + 1)]
    assert publisher.messages == []
    assert await protocol.ledger.periods() == []
    await protocol_of(redis, config, publisher).close(SLOT)
    assert publisher.messages


async def test_the_first_stored_plan_stands_and_only_the_plan_that_was_seen_is_replaced(redis, tmp_path):
    config = bus_config(tmp_path)
    await store(redis, config, random_rows(6, 120))
    planning = protocol_of(redis, config, Collected())
    window, _, planned = await planning.window(SLOT)
    assert planned is None
    rows = planning.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    first = await planning.plan(window, rows)
    kept = await planning.store.store_plan(SLOT, b"of a worker that saw no plan while it made its own")
    assert kept == await planning.store.plan(SLOT) == first.stored
    refused = first.plan.charged_users()[0][:1]
    replaced = await planning.replaced(window, rows, first, refused)
    assert refused[0] not in replaced.plan.charged_users()[0]
    assert await planning.plan(window, rows) == replaced
    assert (await planning.window(SLOT)).planned == replaced
    late = await planning.replaced(window, rows, first, NOBODY)
    assert late == replaced, "a worker that saw the older plan must not undo the newer"
    assert await planning.charge(replaced.plan) is None
    await redis.hset(LEDGER, str(int(refused[0])), config.privacy.ledger_budget)
    assert np.array_equal(await planning.charge(first.plan), refused)


def scales_of(publisher: Collected) -> np.ndarray:
    """Scales of mean and variance of every published cell, in the order of the cells."""
    bodies = [msgspec.json.decode(message.value) for message in publisher.messages if message.topic == HEXAGON_SPEED]
    by_cell = {body["cell"]: [body[name]["scale"] for name in ("mean", "variance")] for body in bodies}
    return np.array([by_cell[cell] for cell in sorted(by_cell)])


@pytest.mark.parametrize("last", ["plan", "charge", "draw"])
async def test_a_window_that_another_version_planned_with_other_scales_is_charged_and_released_as_it_was_planned(
    redis, tmp_path, last
):
    """The other version's worker dies after step ``last``; its scales are three times ours, its charges a third, and 1
    µε."""
    config, rows = bus_config(tmp_path), random_rows(6, 120)
    publisher, ours = Collected(), Collected()
    await store(redis, config, rows)
    protocol = protocol_of(redis, config, publisher)
    window = config.slotting.window(SLOT)
    contributions = protocol.statistics.arrange(await rows_in(redis, config.feed.name, SLOT), window)
    plan = await protocol.make(window, contributions, NOBODY)
    charges = np.where(plan.charges > 0, plan.charges // 3 + 1, 0)
    theirs = msgspec.structs.replace(plan, numerators=(3 * plan.scales.numerator), charges=(charges))
    await protocol.store.store_plan(SLOT, encode_plan(theirs))
    await close_until(protocol_of(redis, config, publisher), SLOT, last)
    assert publisher.messages == []
    await protocol.close(SLOT)
    spent = await protocol.ledger.spent("2017-03-21", plan.users, besides=0)
    assert np.array_equal(spent, charges)

    await redis.flushall()
    await store(redis, config, rows)
    await protocol_of(redis, config, ours).close(SLOT)
    assert scales_of(publisher) == pytest.approx(3 * scales_of(ours), rel=1e-4)


@pytest.mark.parametrize(("admission", "taking_part"), [("first-come", [30, 30, 0, 0, 0, 0]), ("paced", None)])
async def test_paced_users_take_turns_where_the_budget_pays_for_a_third_of_the_windows(
    redis, tmp_path, admission, taking_part
):
    """Six windows of four hours, two of which the budget pays for; everybody is in all of them.

    Every paced user is admitted to one or two windows. That a window has nobody of 30 whose turns are independent
    happens with probability (2/3)³⁰ = 5·10⁻⁶ for each.
    """
    settings = {"window.slot": "4h", "privacy.epsilon": "1", "privacy.budget": "2", "privacy.admission": admission}
    config = bus_config(tmp_path, **settings)
    midnight = config.slotting.period_of(SLOT).start
    protocol, admitted = protocol_of(redis, config, Collected()), []
    await protocol.ledger.start_generation(midnight)
    for slot in range(midnight, midnight + 86_400, 4 * 3600):
        rows = protocol.statistics.arrange(random_rows(6, 3_000, users=30, slot=slot), config.slotting.window(slot))
        planned = await protocol.plan(config.slotting.window(slot), rows)
        assert await protocol.charge(planned.plan) is None
        await redis.set(FeedKeys("bus").outbox(slot), b"committed")
        admitted.append(int((planned.plan.charged_users()[1] > 0).sum()))
    if taking_part is not None:
        assert admitted == taking_part
    else:
        assert min(admitted) > 0
        assert 30 <= sum(admitted) <= 60
    spent = await protocol.ledger.spent("2017-03-21", rows.counts.users, besides=0)
    assert spent.max() <= config.privacy.ledger_budget


HALF = 1800


async def collect(redis: Redis, config: Config) -> None:
    """An hour of rows, by the slots of ``config``."""
    rows, n = random_rows(3, 300), 300
    slots = config.slotting.slot_starts(rows["time"].astype(np.int64))
    await Ledger(redis, config.feed.name).start_generation(birth=0)
    await RowStore(redis, config.feed.name).append("bus/0", 0, n, rows, np.arange(n), slots)


async def released(redis: Redis, config: Config) -> list[tuple[dict[str, str], int]]:
    """(Window, events) of every window that is due, oldest first."""
    windows = []
    for slot in await due(config, "bus/0"):
        bodies = [json.loads(message.value) for message in await closed(redis, config, slot)]
        windows.append((bodies[-1]["window"], sum(body.get("events", 0) for body in bodies[:-1])))
    return windows


def events(start: int, end: int) -> int:
    time = random_rows(3, 300)["time"] // 1_000_000 - SLOT
    return int(((time >= start) & (time < end)).sum())


@pytest.mark.parametrize(
    ("slots", "planned", "starts", "ends", "half_hours"),
    [
        (("30m", "1h"), False, "12:00", "13:00", (0, 1)),
        (("1h", "30m"), False, "12:00", "12:30", (0, 1)),
        (("30m", "1h"), True, "12:30", "13:00", (1, 2)),
    ],
    ids=["longer", "shorter", "longer, and planned before"],
)
async def test_after_another_length_of_slots_a_window_says_what_it_holds_and_a_planned_one_is_finished_as_it_was(
    redis, redis_url, tmp_path, clock, slots, planned, starts, ends, half_hours
):
    before, after = (bus_config(tmp_path, **{"redis.url": redis_url, "window.slot": slot}) for slot in slots)
    await collect(redis, before)
    if planned:
        await closed(redis, before)
        await close_until(protocol_of(redis, before, Collected()), SLOT + HALF, "charge")
    ((window, number),) = await released(redis, after)
    assert window == {"start": f"2017-03-21T{starts}:00Z", "end": f"2017-03-21T{ends}:00Z"}
    assert number == events(*(HALF * half for half in half_hours)) < events(0, 2 * HALF)
    if slots[1] == "1h" and not planned:
        assert await RowStore(redis, "bus").open_slots() == []
        with pytest.raises(PlanError, match=r"window\.slot was changed"):
            await protocol_of(redis, after, Collected()).close(SLOT + HALF)


@pytest.mark.parametrize(("slots", "ends"), [(("30m", "1h"), ["14:00"]), (("1h", "30m"), ["13:00", "13:30", "14:00"])])
async def test_under_participation_the_ticks_go_on_from_a_beginning_of_the_new_length(
    redis, redis_url, tmp_path, clock, slots, ends
):
    """Half an hour after the start, a feed with slots of 30 minutes has released one window, and one with slots of an
    hour none. Then the length changes.
    """
    box = {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}
    settings = {"redis.url": redis_url, "feed.domain": box, "hexagons.resolution": 6}
    before, after = (riders_config(tmp_path, **settings, **{"window.slot": slot}) for slot in slots)
    await collect(redis, before)
    clock.now = float(SLOT)
    assert await released(redis, before) == []
    clock.now = SLOT + HALF + before.window.allowed_delay.total_seconds() + 1
    first = await released(redis, before)
    assert [window["end"][11:16] for window, _ in first] == (["12:30"] if slots[0] == "30m" else [])
    assert await released(redis, before) == []
    clock.now = SLOT + 4 * HALF + before.window.allowed_delay.total_seconds() + 1
    windows = await released(redis, after)
    assert [window["end"][11:16] for window, _ in windows] == (ends if slots[0] == "30m" else ["12:30", *ends])


RUNNING = Period(SLOT - 12 * HOUR, SLOT + 12 * HOUR, "2017-03-21")
NEXT = Period(RUNNING.end, RUNNING.end + DAY, "2017-03-22")
USERS, B = np.array([7, 8], dtype=np.uint64), 100


async def spend(redis: Redis, feed: str, period: Period) -> int:
    """The charge of user 7 if ``feed`` charges the whole budget in a window of ``period``."""
    ledger = Ledger(redis, feed)
    generation = await ledger.start_generation(birth=SLOT)
    await ledger.charge(period.start + HOUR, period, generation, USERS, np.full(2, B), B)
    return int((await ledger.spent(period.key, USERS, besides=0))[0])


async def test_a_new_feed_name_in_the_middle_of_a_period_grants_nothing_until_the_next(redis):
    await Ledger(redis, "old").start_generation(birth=0)
    assert await spend(redis, "old", RUNNING) == B
    with pytest.raises(
        BeforeBirthError, match=r"born 2017-03-21T12:00:00Z; windows of period 2017-03-21.*ledger adopt"
    ):
        await spend(redis, "new", RUNNING)
    assert await Ledger(redis, "new").periods() == []
    assert await spend(redis, "new", NEXT) == B


async def test_a_ledger_is_born_when_redis_makes_it_adopting_only_moves_it_back_and_without_a_birth_it_charges_nothing(
    redis,
):
    ledger = Ledger(redis, "bus")
    generation = await ledger.start_generation()
    now, _ = await redis.time()
    assert now - 60 <= (await ledger.birth() or 0) <= now
    await ledger.start_generation(birth=0)
    assert (await ledger.birth() or 0) >= now - 60, "a ledger is born once"
    assert await ledger.adopt(SLOT) == SLOT
    assert await ledger.adopt(SLOT + DAY) == SLOT
    assert await ledger.adopt(SLOT - DAY) == SLOT - DAY
    await redis.delete(FeedKeys("bus").birth)
    with pytest.raises(BeforeBirthError, match="not recorded"):
        await ledger.charge(SLOT, RUNNING, generation, USERS, np.full(2, B), B)


async def filled(redis: Redis, config: Config) -> None:
    """Rows in a period before the birth and in one after it."""
    store, rows = RowStore(redis, config.feed.name), random_rows(3, 60)
    slots = np.repeat([SLOT, SLOT + 2 * DAY], 30)
    await Ledger(redis, config.feed.name).start_generation(birth=SLOT)
    await store.append("t/0", 0, 60, rows, np.arange(60), slots)


async def test_under_values_windows_of_earlier_periods_are_not_drawn_and_wait_until_they_are_adopted(
    redis, redis_url, tmp_path, clock
):
    clock.now = SLOT + 3 * DAY
    config = bus_config(tmp_path, **{"redis.url": redis_url})
    await filled(redis, config)
    assert await due(config) == [SLOT + 2 * DAY]
    await refused(redis, config, BeforeBirthError)
    assert not await redis.exists(FeedKeys("bus").outbox(SLOT))
    await Ledger(redis, "bus").adopt(0)
    assert await due(config) == [SLOT, SLOT + 2 * DAY]


async def test_under_participation_no_tick_of_an_earlier_period_is_published(redis, redis_url, tmp_path, clock):
    config = riders_config(tmp_path, **{"redis.url": redis_url})
    clock.now = SLOT + 60
    await filled(redis, config)
    assert await due(config) == []
    clock.now = SLOT + 2 * DAY
    slots = await due(config)
    assert slots[0] == config.slotting.period_of(SLOT).end
    assert all(config.slotting.period_of(slot).start >= SLOT for slot in slots)


def test_adopt_explains_itself_and_changes_nothing_unless_the_operator_says_that_no_other_ledger_has():
    at = ["ledger", "adopt", "--config", hourly.BUS, "--since"]
    said = run(*at, "2017-03-21", code=2).stderr
    assert "periods from 2017-03-21T05:00:00Z on" in said
    assert "every user gets" in said
    assert "write a date like 2017-03-21" in run(*at, "yesterday", "--no-other-ledger", code=2).stderr


FIELDS = {"time": "t", "lat": "y", "lng": "x", "value": "v", "time_format": "epoch-ms"}


def test_another_field_for_the_user_is_refused_with_the_remedy_and_with_the_old_one_the_ledger_goes_on(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    place = {"lat": 30.2, "lng": -97.7, "speed": 12.0}
    buses = {"latitude": 30.2, "longitude": -97.7, "speed": 4.0, "timestamp": "2017-03-21T13:00:01Z"}
    days = {
        "canonical": [{"user": "a", "time": (SLOT + hour * HOUR) * 1000} | place for hour in range(2)],
        "capmetro": [{"vehicle_id": "a"} | buses],
    }
    for name, events in days.items():
        (tmp_path / f"{name}.ndjson").write_text("".join(json.dumps(event) + "\n" for event in events))

    def replayed(name: str, hour: int, code: int = 0) -> Result:
        span = ["--from", f"2017-03-21T{12 + hour}:00Z", "--until", f"2017-03-21T{13 + hour}:00Z"]
        kept = ["--offline", "--state", "ledger", "--json", "--config", hourly.BUS]
        return run("replay", f"{name}.ndjson", "--format", name, *kept, *span, code=code)

    first, other, second = replayed("canonical", 0), replayed("capmetro", 1, code=1), replayed("canonical", 1)
    assert other.stdout == ""
    assert all(part in other.stderr for part in ("field 'user'", "field 'vehicle_id'", "[feed.fields]", "new name"))
    spent = [json.loads(done.stderr)["charged"]["2017-03-21"] for done in (first, second)]
    assert spent[0][0] == spent[1][0] == 1
    assert spent[1][1] > spent[0][1]
    assert WINDOW in second.stdout


@pytest.mark.parametrize(
    ("key", "value"),
    [("feed.format", "capmetro"), ("feed.topic", "other"), ("feed.format", "itms"), ("privacy.period", "12h")],
)
async def test_a_worker_that_would_name_users_otherwise_or_divide_periods_anew_releases_nothing(
    key, value, feed, redis
):
    before, after = feed(), feed(**{key: value})
    await store(redis, before, random_rows(4, 60))
    await verify_ledger(before, redis)
    with pytest.raises(LedgerError, match=r"second budget in the same period|spent budgets would be forgotten"):
        await verify_ledger(after, redis)
    (report,) = await close_windows(after, [SLOT])
    assert report.failure == "ledger"
    name = before.feed.name
    assert await Ledger(redis, name).periods() == []
    assert [record for record in await read_all(before.kafka.bootstrap, name) if record.topic == WINDOW] == []
    (report,) = await close_windows(before, [SLOT])
    assert report.failure is None


async def test_formats_that_name_users_by_the_same_field_share_a_ledger(feed, redis):
    formats = [feed(**{"feed.format": name}) for name in ("capmetro", "capmetro-2015")]
    fields = {f"feed.fields.{name}": path for name, path in (FIELDS | {"user": "vehicle_id"}).items()}
    formats.append(feed(**{"feed.format": "declared"}, **fields))
    assert len({await verify_ledger(config, redis) for config in formats}) == 1


async def test_doctor_finds_another_or_a_missing_user_key_before_a_worker_starts(feed, redis):
    config = feed()
    key = load_user_key(config.privacy.user_key_file)
    await RowStore.of(redis, config).claim_key(key_fingerprint(key))
    assert (await ledger_finding(config, redis)).ok
    config.privacy.user_key_file.unlink()
    missing = await ledger_finding(config, redis)
    assert not missing.ok
    assert "restore the file" in missing.found
    load_user_key(config.privacy.user_key_file)
    another = await ledger_finding(config, redis)
    assert not another.ok
    assert "user_key_file" in another.found


START = SLOT + 10 * DAY
"""A day in the first half of a block of 28 days."""
DAYS = 5


def with_horizon(folder: Path, budget: float, **overrides: Any) -> Config:
    horizon = {"period": "28d", "budget": budget}
    return bus_config(
        folder, **PLAINLY_PLANNED, **{"privacy.horizon": horizon, "speed.allocation": "uniform"}, **overrides
    )


async def released_on_days(redis: Redis, config: Config) -> list[str]:
    """Lines of one window on each of some days, in which the same users drive."""
    out = io.StringIO()
    await Ledger.of(redis, config).start_generation(birth=0)
    rows = np.concatenate([random_rows(1, 60, users=6, slot=START + day * DAY) for day in range(DAYS)])
    by_slot = split_by_slot(rows, config)
    protocol = protocol_of(redis, config, LinePublisher(out), MemoryRows(by_slot))
    for slot in sorted(by_slot):
        await protocol.close(slot)
    return out.getvalue().splitlines()


def markers(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line)["value"] for line in lines if f'"topic":"{WINDOW}"' in line]


async def test_a_block_pays_for_its_days_and_then_for_none(redis, tmp_path):
    config = with_horizon(tmp_path, 480.0)
    lines = await released_on_days(redis, config)
    spent = await Ledger.of(redis, config).periods()
    block = config.slotting.block_of(START)
    assert block is not None
    assert spent.count(block.key) == 1
    users, total = await Ledger.of(redis, config).total(block.key)
    days = [await Ledger.of(redis, config).total(period) for period in spent if period != block.key]
    assert total == sum(sum_of_day for _, sum_of_day in days), "every charge counts in its period and in its block"
    assert users == 6
    report = verified(lines)
    assert report["sound"], report["problems"]
    assert {marker["horizon"]["budget"] for marker in markers(lines)} == {480.0}

    await redis.flushall()
    small = with_horizon(tmp_path, 2 * config.privacy.epsilon, **{"privacy.budget": 2 * config.privacy.epsilon})
    lines = await released_on_days(redis, small)
    assert len(markers(lines)) == DAYS, "a window is released, whoever can pay"
    last = config.slotting.period_of(START + (DAYS - 1) * DAY).key
    assert await Ledger.of(redis, small).total(last) == (0, 0)
    users, total = await Ledger.of(redis, small).total(block.key)
    assert 0 < total <= users * small.privacy.horizon_budget


async def test_participation_and_zcdp_have_a_horizon_too(redis, tmp_path):
    config = riders(tmp_path, **{"privacy.horizon": {"period": "7d", "budget": 20.0}})
    assert {marker["horizon"]["budget"] for marker in markers(await released_on_days(redis, config))} == {20.0}
    await redis.flushall()
    zcdp = zcdp_config(tmp_path, **SMALL, **{"privacy.horizon": {"period": "7d", "budget": 8.0}})
    stated = [marker["horizon"] for marker in markers(await released_on_days(redis, zcdp))]
    block = zcdp.privacy.horizon_budget
    assert {horizon["rho_budget"] for horizon in stated} == {block / 1e9}
    assert {horizon["budget"] for horizon in stated} == {zcdp.privacy.stated_epsilon(block)}
    assert 7.99 < zcdp.privacy.stated_epsilon(block) <= 8.0


async def test_another_horizon_is_another_ledger(redis, tmp_path):
    """Blocks of another length would forget what was spent."""
    ledger = Ledger.of(redis, with_horizon(tmp_path, 480.0))
    await ledger.claim_policy(with_horizon(tmp_path, 480.0).ledger_policy)
    await ledger.claim_policy(with_horizon(tmp_path, 300.0).ledger_policy)
    with pytest.raises(LedgerError, match="spent budgets would be forgotten"):
        await ledger.claim_policy(bus_config(tmp_path).ledger_policy)
