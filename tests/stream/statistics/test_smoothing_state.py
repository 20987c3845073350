"""The smoothing state of a feed is a function of its releases and changes once with each window. Pacing spreads a short
budget over a period, for each user by what they spent themselves."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h3
import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from dpcore.noise import Noise
from dpcore.smoothing import MOST_CELLS
from stream.config import Config
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message
from stream.statistics import pipeline
from stream.statistics.plan import Due, spendable
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory, step
from stream.storage.keys import FeedKeys
from stream.terms import Terms
from stream.windows import Window
from tests.support.builders import SLOT, bus_config, random_rows, riders_config, zcdp_config
from tests.support.closing import Collected, protocol_of
from tests.support.releasing import build_messages, planned, recalled_from
from tests.support.schemas import validate
from tests.support.stored_rows import store

HOUR = 3600
KALMAN = {"speed.post_processing": ["kalman"]}


def released(
    config: Config, hours: Iterable[int], memory: Memory | None = None, seed: int = 1
) -> tuple[list[list[Message]], Memory | None]:
    """The messages of several windows, each made with the memory the one before it left; the noise is a tape."""
    windows = []
    for hour in hours:
        rows = random_rows(seed + hour, 150, slot=SLOT + hour * HOUR)
        noise, read = Noise(np.random.default_rng(seed + hour).bytes), decode_memory(stored(memory))
        messages, memory = build_messages(*planned(config, rows, slot=SLOT + hour * HOUR), noise, read)
        windows.append(messages)
    return windows, memory


def stored(memory: Memory | None) -> bytes | None:
    return None if memory is None else encode_memory(memory)


def without_models(messages: Sequence[Message]) -> list[dict[str, Any]]:
    bodies = [json.loads(message.value) for message in messages[:-1]]
    for body in bodies:
        body.pop("post_processed")
    return bodies


def area_config(tmp_path: Path, **overrides: Any) -> Config:
    """Riders whose close markers state the mean of the area."""
    area = {"participation.weight": "share", "participation.area_share": 4}
    return riders_config(tmp_path, **area, **{"speed.statistics": ["mean"]}, **overrides)


@pytest.mark.parametrize("build", [bus_config, riders_config, zcdp_config, area_config])
def test_the_memory_is_a_function_of_the_published_messages_alone(tmp_path, build):
    config = build(tmp_path, **{"speed.post_processing": ["kalman"]})
    windows, memory = released(config, [0, 1, 2, 5])
    assert memory is not None
    assert stored(recalled_from(windows)) == stored(memory)
    for message in [message for messages in windows for message in messages]:
        validate(message.topic, json.loads(message.value))


def test_whatever_happened_to_the_memory_the_raw_releases_are_the_same_bytes(tmp_path):
    config = bus_config(tmp_path, **KALMAN)
    _, memory = released(config, [0, 1])
    cells = len(memory.seen) // 8
    for blob in (None, b"", b"\xc1 no msgpack", encode_memory(memory)[:-9]):
        assert decode_memory(blob) is None
    for damage in (
        {"version": 0},
        {"shift": memory.shift[:-8] + b"\xff" * 8},
        {"precision": np.full(len(memory.precision) // 8, -1.0).tobytes()},
        {"counted": b"torn"},
        {"counted": np.full(cells, np.nan).tobytes()},
        {"counted": bytes(8 * (cells + 1))},
    ):
        assert decode_memory(encode_memory(msgspec.structs.replace(memory, **damage))) is None, damage
    afresh, _ = released(config, [2])
    goes_on, _ = released(config, [2], memory)
    assert without_models(afresh[0]) == without_models(goes_on[0])
    assert afresh[0][0].value != goes_on[0][0].value, "the memory made no difference, so this test shows nothing"
    assert json.loads(afresh[0][-1].value)["memory"]["before"] is None


def test_means_clipped_elsewhere_are_not_mixed(tmp_path):
    _, memory = released(bus_config(tmp_path, **KALMAN), [0])
    other = bus_config(tmp_path, **KALMAN, **{"value.upper": 90.0})
    assert released(other, [1], memory)[1] == released(other, [1])[1]


def test_without_kalman_there_is_no_memory_and_nothing_names_one(tmp_path):
    (messages,), memory = released(bus_config(tmp_path, **{"speed.post_processing": []}), [0])
    assert memory is None
    assert "memory" not in json.loads(messages[-1].value)
    assert not any(b"post_processed" in message.value for message in messages)


def test_typical_and_deviation_stand_beside_the_mean_once_there_are_earlier_releases(tmp_path):
    windows, _ = released(bus_config(tmp_path, **KALMAN), [0, 1])
    for hour, messages in enumerate(windows):
        for message in messages[:-1]:
            body = json.loads(message.value)
            assert (message.topic, body["status"]) == (HEXAGON_SPEED, "published")
            models = body["post_processed"]
            assert list(models) == (["mean", "typical", "deviation"] if hour else ["mean"])
            assert {each["method"] for each in models.values()} == {"kalman"}
            assert all(each["interval"][0] <= each["value"] <= each["interval"][1] for each in models.values())
            assert "raw" in body["mean"]
            if not hour:
                continue
            mean, typical, deviation = (models[name] for name in ("mean", "typical", "deviation"))
            assert deviation["value"] == pytest.approx(mean["value"] - typical["value"], abs=0.002)
            assert typical["interval"][0] >= 0
            for side in (0, 1):
                both = [mean["interval"][side] - mean["value"], typical["interval"][1 - side] - typical["value"]]
                assert abs(deviation["interval"][side] - deviation["value"]) == pytest.approx(
                    np.hypot(*both), abs=0.005
                )


@pytest.mark.parametrize("build", [bus_config, riders_config, zcdp_config, area_config])
def test_the_same_releases_give_the_same_models_whatever_the_raw_data_are(tmp_path, build):
    """Values are permuted among the events; under "participation", where counts are no plan's business, all is new."""
    config = build(tmp_path, **KALMAN)
    (messages, now), memory = released(config, [0, 1])
    bodies = [json.loads(message.value) for message in now[:-1]]
    *_, marker = (json.loads(message.value) for message in now)
    before = recalled_from([messages])
    made = []
    for seed in (2, 3):
        rows = random_rows(2, 150, slot=SLOT + HOUR)
        rows["value"] = np.random.default_rng(seed).permutation(rows["value"])
        if config.participation is not None:
            rows = random_rows(seed, 90, slot=SLOT + HOUR)
        plan = planned(config, rows, slot=SLOT + HOUR)[0]
        made.append(pipeline.post_process(plan, bodies, before, marker.get("area")))
    (one, after), (other, after_other) = made
    assert stored(after) == stored(after_other) == stored(memory)
    assert list(one) == list(other) == ["mean", "typical", "deviation"]
    for name, column in one.items():
        columns = [column.value, *column.interval], [other[name].value, *other[name].interval]
        assert all(np.array_equal(*pair) for pair in zip(*columns, strict=True)), name
        values = [body["post_processed"][name]["value"] for body in bodies]
        assert np.round(column.value, 3).tolist() == pytest.approx(values), "what was published"


def test_typical_is_what_earlier_releases_say(tmp_path):
    config = bus_config(tmp_path, **KALMAN)
    _, memory = released(config, [0, 1])
    plan, _ = planned(config, random_rows(3, 150, slot=SLOT + 2 * HOUR), slot=SLOT + 2 * HOUR)
    bodies = [json.loads(message.value) for message in released(config, [2], memory)[0][0][:-1]]
    others = [body | {"mean": body["mean"] | {"raw": 60.0}} for body in bodies]
    one, other = (pipeline.post_process(plan, each, memory)[0] for each in (bodies, others))
    assert np.array_equal(one["typical"].value, other["typical"].value)
    assert other["deviation"].value.mean() > one["deviation"].value.mean()


def test_an_empty_window_only_lets_time_pass(tmp_path):
    config = bus_config(tmp_path, **KALMAN)
    _, memory = released(config, [0])
    (marker,), after = build_messages(*planned(config, random_rows(9, 0), slot=SLOT + HOUR), Noise(), memory)
    assert marker.topic == WINDOW
    assert (after.cells, after.end) == (memory.cells, SLOT + 2 * HOUR)


def test_a_memory_has_a_largest_size():
    """A country at resolution 7 has more cells than a memory keeps."""
    cells = sorted(h3.grid_disk(h3.latlng_to_cell(30.3, -97.7, 7), 44))
    assert len(cells) > MOST_CELLS
    bodies = [
        {"cell": cell, "relation": "values", "mean": {"raw": 30.0, "scale": 5.0 + g / 1000}, "events": 10, "users": 3}
        for g, cell in enumerate(cells)
    ]
    memory, _ = step(None, bodies, Window(SLOT, SLOT + HOUR), upper=65.0, timezone="America/Chicago")
    assert len(encode_memory(memory)) < 56 * MOST_CELLS + 24 * len(cells) + 4000


async def test_what_redis_remembers_is_what_the_topics_say(redis, tmp_path):
    config = bus_config(tmp_path, **KALMAN)
    published = []
    for hour in range(3):
        await store(redis, config, random_rows(hour, 150, slot=SLOT + hour * HOUR), SLOT + hour * HOUR)
        sink = Collected()
        await protocol_of(redis, config, sink).close(SLOT + hour * HOUR)
        published.append(sink.messages)
    assert await redis.get(FeedKeys("bus").memory) == stored(recalled_from(published))


DAY = 1_490_072_400  # 2017-03-21T00:00:00-05:00
WINTER_TIME = 1_509_858_000  # 2017-11-05T00:00:00-05:00, a day of 25 hours in Austin
GRANT = 1_500_000
USERS = np.random.default_rng(1).integers(0, 2**63, 3_000).astype(np.uint64)


@pytest.fixture
def hourly(tmp_path: Path) -> Config:
    """Eight grants for the 24 windows of a day."""
    return bus_config(
        tmp_path,
        **{"window.slot": "1h", "privacy.admission": "paced", "privacy.epsilon": "1.5", "privacy.budget": "12"},
    )


def due(window: Window, config: Config) -> Due:
    return Due(Terms.of(config), window, "g")


def admissions(config: Config, first: int, users: npt.NDArray[np.uint64] = USERS) -> npt.NDArray[np.bool_]:
    """(W, L): who has a whole grant to spend in each window of a day, if they are active in all from ``first`` on."""
    period, rows = config.slotting.period_of(DAY if first < DAY + 90_000 else first), []
    budget, grant = config.privacy.ledger_budget, config.window_grant
    left = np.full(len(users), budget, dtype=np.int64)
    start = period.start
    while start < period.end:
        window = config.slotting.window(start)
        pays = (spendable(left, users, due(window, config), budget) >= grant) & (start >= first)
        left = left - grant * pays
        rows.append(pays)
        start = window.end
    assert left.min() >= 0
    return np.array(rows)


def test_without_pacing_a_user_may_spend_all_that_is_left(tmp_path):
    left = np.arange(3)
    assert spendable(left, USERS[:3], due(Window(DAY, DAY + 3600), bus_config(tmp_path)), 2) is left


@pytest.mark.parametrize("rho", [None, 0.5, 80.0], ids=["pure", "zcdp", "zcdp, a grant above 32 bits"])
def test_whoever_is_active_all_day_takes_part_in_every_third_window_if_the_budget_pays_for_a_third(
    hourly, tmp_path, rho
):
    """3 000 users, each admitted with probability 1/3: five standard deviations are 0.043."""
    paced: dict[str, Any] = {"privacy.admission": "paced", "window.slot": "1h"}
    config = hourly if rho is None else zcdp_config(tmp_path, rho, 8 * rho, **paced)
    admitted = admissions(config, DAY)
    assert set(np.unique(admitted.sum(axis=0))) <= {7, 8}
    assert np.abs(admitted.mean(axis=1) - 1 / 3).max() < 0.043
    away = np.diff([np.flatnonzero(user) for user in admitted.T if user.sum() == 8], axis=1)
    assert away.max() == 3


def test_users_take_turns_in_another_order_each_day_and_whoever_begins_in_the_evening_takes_part_in_all_of_it(hourly):
    first, again = admissions(hourly, DAY), admissions(hourly, DAY + 86_400 * 7)
    assert 0.2 < (first[1] & again[1]).sum() / first[1].sum() < 0.47
    assert admissions(hourly, DAY + 17 * 3600)[17:].all()
    longer = admissions(hourly, WINTER_TIME)
    assert len(longer) == 25
    assert longer.sum(axis=0).max() <= 8, "a day with 25 hours ends within its budget"


@pytest.mark.parametrize("budget", [12_000_000, 100_000 * 10**6])
def test_nobody_may_spend_more_than_they_have_left(tmp_path, budget):
    config = bus_config(
        tmp_path, **{"window.slot": "1h", "privacy.admission": "paced", "privacy.budget": str(budget / 1e6)}
    )
    random = np.random.default_rng(3)
    left = random.integers(-GRANT, budget + 1, len(USERS))
    users = random.integers(0, 2**64, len(USERS), dtype=np.uint64)
    for hour in range(24):
        most = spendable(left, users, due(Window(DAY + 3600 * hour, DAY + 3600 * (hour + 1)), config), budget)
        assert (most >= 0).all()
        assert (most <= np.maximum(left, 0)).all()
    assert (most == np.maximum(left, 0)).all(), "in the last window, all of it"


def test_pacing_looks_at_nobody_else(tmp_path):
    """Under "participation" one user's presence must not decide about another's."""
    config = riders_config(tmp_path, **{"privacy.admission": "paced"})
    window, budget = config.slotting.window(DAY), config.privacy.ledger_budget
    left = np.random.default_rng(2).integers(0, budget, len(USERS))
    together = spendable(left, USERS, due(window, config), budget)
    alone = [int(spendable(left[i : i + 1], USERS[i : i + 1], due(window, config), budget)[0]) for i in range(100)]
    assert together[:100].tolist() == alone
