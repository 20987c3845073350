"""Live sources. A clock that was ahead, of an agency or of one vehicle, silences nobody once it is right, and changes
no later speed. Most vehicles refused are said with the reason, within a minute. While a large document is decoded,
the event loop goes on."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import pytest
from google.transit import gtfs_realtime_pb2
from structlog.testing import capture_logs

from stream.config.feed import FeedConfig
from stream.sources.delivery import Pacer, Progress, deliver, in_background
from stream.sources.hfp import HighFrequencyPositions, Publication
from stream.sources.messages import Messages
from stream.sources.polling import Poller, PollSettings, poll
from stream.sources.siri import SiriVehicleMonitoring
from stream.sources.snapshot_events import SnapshotEvents
from stream.sources.snapshots import IN_FUTURE, Decode, Snapshot, SnapshotError
from stream.sources.timestamps import Judged, RefusalWatch, TimestampWatch
from stream.sources.vehicle_positions import GtfsRealtime, decode_snapshot
from tests.stream.sources.agency import (
    FEED,
    HOURS,
    START,
    Agency,
    Kept,
    Vehicle,
    answer,
    feed_message,
    fleet,
    reader,
    siri_bytes,
    snapshot_bytes,
)
from tests.stream.sources.speedless import publication

EVERY_S, NORTH = 15, 0.0005
"""Seconds and degrees between two snapshots: 55.6 m, 13.3 km/h."""
KMH = pytest.approx(13.34, abs=0.1)


def fixes(step: int, ahead: dict[str, int]) -> list[Vehicle]:
    """Three buses; ``ahead``: by how many seconds the timestamp of a bus is too late."""
    clock = START + EVERY_S * step
    return [
        (name, clock + ahead.get(name, 0), 28.6 + NORTH * step, 77.2 + k / 100, None) for k, name in enumerate("abc")
    ]


def body_at(step: int, ahead: dict[str, int], header_ahead: int = 0) -> bytes:
    return snapshot_bytes(fixes(step, ahead), START + EVERY_S * step + header_ahead)


def skewed_at(wrong: Sequence[int], ahead: int, names: str = "abc") -> Callable[[int], bytes]:
    """Snapshots of which some are ahead: header and all vehicles, or if only some vehicles are named, these alone."""

    def body(step: int) -> bytes:
        if step not in wrong:
            return body_at(step, {})
        return body_at(step, dict.fromkeys(names, ahead), ahead if names == "abc" else 0)

    return body


def live(source: GtfsRealtime, body: Callable[[int], bytes], steps: range) -> list[list[dict[str, object]]]:
    """The events of each answer, which arrives on time."""
    answers = [source.events(body(step), (START + EVERY_S * step) * 1_000_000).values for step in steps]
    return [[json.loads(value) for value in values] for values in answers]


def of_stored(body: Callable[[int], bytes], steps: Sequence[int]) -> list[list[dict[str, object]]]:
    """The events of each stored document."""
    source = reader()
    answers = [source.of_document(decode_snapshot(body(step))).values for step in steps]
    return [[json.loads(value) for value in values] for values in answers]


@pytest.mark.parametrize("ahead", [12, 60, 240, 299, 1500, 3000, 3590, 86_400, 315_360_000])
@pytest.mark.parametrize("names", ["abc", "b"])
def test_after_one_snapshot_ahead_each_vehicle_gives_an_event_with_the_right_speed_in_every_later_one(ahead, names):
    source = reader()
    answers = live(source, skewed_at([4], ahead, names), range(60))
    right, late = answers[5:], 1 if ahead == 12 else 0
    assert [len(events) for events in right[late:]] == [3] * (55 - late)
    assert all(event["speed"] == KMH for events in right for event in events)
    assert source.tally.refused.get("time-in-future", 0) == (len(names) if ahead > 300 else 0)


def test_a_timestamp_that_is_five_minutes_ahead_is_sent_and_one_further_is_not():
    """A vehicle without a timestamp has that of the header, or the arrival if the header is too far ahead."""
    source = reader()
    reported: list[Vehicle] = [(f"{s}", START + s, 28.6, 77.2, 5.0) for s in (300, 301)]
    (value,) = source.events(snapshot_bytes(reported, START), START * 1_000_000).values
    assert json.loads(value)["user"] == "300"
    assert source.tally.refused == {"time-in-future": 1}
    for ahead, seconds in ((299, 299), (301, 0)):
        body = snapshot_bytes([("a", None, 28.6, 77.2, 5.0)], START + ahead)
        (value,) = reader().events(body, START * 1_000_000).values
        assert json.loads(value)["time"] == (START + seconds) * 1000


def test_an_old_document_that_comes_late_gives_no_event_and_a_clock_ahead_by_a_constant_is_right():
    """Each third answer is that of two before, as a second server with an old document gives it."""
    source = reader()
    mixed = live(source, lambda step: body_at(step - 2 if step % 3 == 2 else step, {}), range(30))
    assert [len(events) for events in mixed[3:]] == [3, 3, 0] * 9
    assert (source.tally.set_back, source.tally.earlier) == (0, 30)
    ahead = live(reader(), lambda step: body_at(step, dict.fromkeys("abc", 200), 200), range(30))
    assert [len(events) for events in ahead] == [0] + [3] * 29
    assert all(event["speed"] == KMH for events in mixed + ahead for event in events)


@pytest.mark.parametrize(("ahead", "refused"), [(240, 0), (3000, 1)])
def test_a_clock_that_was_ahead_silences_no_vehicle_of_siri_vm_or_hfp(ahead, refused):
    documents, messages = SiriVehicleMonitoring(FEED, HOURS), HighFrequencyPositions(FEED, HOURS)
    for step in range(10):
        arrival = START + EVERY_S * step
        seconds = arrival + (ahead if step == 4 else 0)
        wanted = 1 - refused if step == 4 else 1
        document = siri_bytes([("7", seconds, 28.6, 77.2, 20)], seconds)
        assert len(documents.events(document, arrival * 1_000_000).values) == wanted
        assert len(messages.of([publication(("18:7", seconds, 28.6, 77.2, 5.0))], arrival * 1_000_000).values) == wanted
    for source in (documents, messages):
        assert source.tally.refused.get("time-in-future", 0) == refused
        assert source.tally.set_back == 1 - refused


@pytest.mark.parametrize(("ahead", "first"), [(3000, 9), (240, 25)])
def test_after_stored_snapshots_ahead_the_next_or_those_after_their_times_give_events_with_right_speeds(ahead, first):
    right = of_stored(skewed_at(range(4, 8), ahead), range(40))[first:]
    assert [len(events) for events in right] == [3] * (40 - first)
    assert all(event["speed"] == KMH for events in right for event in events)


def test_two_old_stored_documents_in_a_row_change_no_speed_of_later_ones():
    """They look like a clock that was set back; what is sent again has the same user and time, and counts once."""
    orders = [*range(20), 12, 13, *range(20, 40)], range(40)
    sent = [of_stored(lambda step: body_at(step, {}), order) for order in orders]
    mixed, whole = ({(event["user"], event["time"]) for events in answers for event in events} for answers in sent)
    assert mixed == whole
    assert all(event["speed"] == KMH for events in sent[0] for event in events)


def said(
    steps: Sequence[int], body: Callable[[int], bytes], behind: float = 0
) -> tuple[list[MutableMapping[str, Any]], GtfsRealtime]:
    """What is logged of answers that arrive so many seconds ``behind`` their time, and who read them."""
    source = reader("reported")
    with capture_logs() as logs:
        for step in steps:
            source.events(body(step), round(START + behind + EVERY_S * step) * 1_000_000)
    return logs, source


def test_most_vehicles_with_an_earlier_timestamp_are_said_once_in_five_minutes_and_counted():
    logs, source = said(range(100, 142), lambda step: body_at(100 if step == 100 else step - 101, {}))
    assert [(log["log_level"], log["documents"], log["vehicles"]) for log in logs] == [
        ("warning", 1, 3),
        ("warning", 20, 3),
        ("warning", 20, 3),
    ]
    assert all("earlier timestamp" in log["event"] for log in logs)
    assert (source.tally.earlier, source.tally.repeated) == (123, 123)


@pytest.mark.parametrize("behind", [5.5 * 3600, 1800, 1200, 0, -3600])
def test_timestamps_behind_or_ahead_by_a_zone_are_said_within_a_minute_and_once(behind):
    words = "correct the clock of this machine" if behind < 0 else "behind their arrival" if behind > 1200 else ""
    for steps in (range(5), range(20)):
        logs, source = said(steps, lambda step: body_at(step, {}), behind)
        assert [words in log["event"] for log in logs] == [True] * bool(words)
        assert source.tally.refused == ({"time-in-future": 3 * len(steps)} if behind < 0 else {})


@pytest.mark.parametrize(
    ("steps", "shown", "is_said"),
    [
        (range(1000, 1015), lambda step: fixes(step, {})[:1] + fixes(0, {})[1:], False),
        (range(100), lambda step: fixes(step // 8 * 8, {}), False),
        (range(30), lambda step: fixes(0, {}), True),
    ],
    ids=["a parked fleet", "fewer reports than documents", "no timestamp advances"],
)
def test_documents_that_change_while_no_timestamp_advances_are_said_after_five_minutes_alone(steps, shown, is_said):
    logs, _ = said(steps, lambda step: snapshot_bytes(shown(step), START + EVERY_S * step))
    assert ["no vehicle's timestamp has advanced" in log["event"] for log in logs] == [True] * is_said


def test_documents_without_vehicles_or_with_news_are_no_trouble():
    watch = TimestampWatch()
    for second in range(0, 4000, 15):
        at_us = (START + second) * 1_000_000
        assert watch.judged(Judged(fresh=0, behind=0, earlier=0, ahead=0, entries=0), at_us) is None
        assert watch.judged(Judged(fresh=1, behind=0, earlier=4, ahead=0, entries=9), at_us) is None


PATIENCE_S = 30.0
"""How long a decoder waits for the loop before the test fails; it never waits for so long if the loop goes on."""


def deliver_while_timers_fire(turned: threading.Event, delivery: Coroutine[Any, Any, None]) -> None:
    """Let a timer of the loop fire some times, then release the decoder."""

    async def run() -> None:
        delivering = asyncio.create_task(delivery)
        for _ in range(20):
            await asyncio.sleep(0.001)
        turned.set()
        await delivering

    asyncio.run(run())


def slow_reader(turned: threading.Event) -> SnapshotEvents:
    """It decodes a document only after the event loop has turned meanwhile."""

    def decode(body: bytes, received_us: int | None) -> Snapshot:
        assert turned.wait(PATIENCE_S), "the event loop stood still while a snapshot was decoded"
        return decode_snapshot(body, received_us)

    class Slow(SnapshotEvents):
        def decoder(self, feed: FeedConfig) -> Decode:
            return decode

    return Slow(FEED, HOURS)


def test_timers_fire_while_an_answer_is_decoded_and_its_events_arrive():
    turned, kept, settings = threading.Event(), Kept(), PollSettings()
    with Agency([answer(200, fleet(0, speed=7.0))]) as agency:
        poller = Poller(agency.url, settings)
        polling = poll(slow_reader(turned), poller, settings, kept, asyncio.Event(), once=True)
        deliver_while_timers_fire(turned, polling)
    assert len(kept.values) == 3


def test_timers_fire_while_a_stored_snapshot_is_decoded_and_errors_keep_their_place():
    turned, kept = threading.Event(), Kept()
    slow = slow_reader(turned)

    def stored() -> Iterator[Messages]:
        yield slow.events(fleet(0, speed=7.0))
        raise SnapshotError("the second is none")

    with pytest.raises(SnapshotError, match="the second is none"):
        deliver_while_timers_fire(turned, deliver(in_background(stored()), kept, Pacer(None), Progress()))
    assert len(kept.values) == 3


def test_snapshots_are_read_ahead_while_delivery_is_busy_with_one():
    third = threading.Event()

    def stored() -> Iterator[Messages]:
        for number in range(6):
            if number == 2:
                third.set()
            yield Messages(np.full(1, number), [None], [b"%d" % number])

    blocks = in_background(stored())
    delivered = [next(block for block in blocks if block.values)]
    assert third.wait(PATIENCE_S), "the third was not read while the first was delivered"
    delivered += [block for block in blocks if block.values]
    assert [block.values for block in delivered] == [[b"%d" % number] for number in range(6)]


Change = Callable[[gtfs_realtime_pb2.FeedEntity], object]
NAMELESS = gtfs_realtime_pb2.TripUpdate(trip=gtfs_realtime_pb2.TripDescriptor(trip_id="7"))
SPOILED: dict[str, tuple[Change, str]] = {
    "time-no-epoch-seconds": (
        lambda entity: setattr(entity.vehicle, "timestamp", entity.vehicle.timestamp * 1000),
        "as milliseconds are",
    ),
    "no-vehicle-id": (lambda entity: entity.vehicle.ClearField("vehicle"), "does not name its vehicles"),
    "no-place": (
        lambda entity: entity.vehicle.position.CopyFrom(gtfs_realtime_pb2.Position(latitude=0, longitude=0)),
        "exactly 0, 0",
    ),
    "no-vehicle": (
        lambda entity: entity.CopyFrom(gtfs_realtime_pb2.FeedEntity(id=entity.id, trip_update=NAMELESS)),
        "address of its vehicle positions",
    ),
    "deleted": (lambda entity: setattr(entity, "is_deleted", True), ""),
}
"""What is wrong with an entity that is refused for this reason, and what is said of it."""


def warned(reason: str, seconds: int, vehicles: int = 20, concerned: Sequence[int] = range(4)) -> list[str]:
    """What is said of snapshots of so many vehicles, some of each four of which are spoiled."""
    source = reader("reported")
    with capture_logs() as logs:
        for step in range(seconds // EVERY_S + 1):
            now = START + EVERY_S * step
            message = feed_message([(f"bus-{n}", now, 28.6, 77.2, 5.0) for n in range(vehicles)], now)
            for entity in message.entity:
                if int(entity.id) % 4 in concerned:
                    SPOILED[reason][0](entity)
            source.events(message.SerializeToString(), now * 1_000_000)
    assert all(log["log_level"] == "warning" for log in logs)
    return [log["event"] for log in logs]


@pytest.mark.parametrize("vehicles", [4, 20, 2_000])
@pytest.mark.parametrize("reason", [reason for reason in SPOILED if reason != "deleted"])
def test_a_feed_that_gives_no_event_is_said_within_a_minute_with_the_remedy(reason, vehicles):
    sentences = warned(reason, 60, vehicles)
    assert [sentence.split(":")[0] for sentence in sentences] == [f"most vehicles are refused as {reason}"]
    assert SPOILED[reason][1] in sentences[0]
    assert "bus-" not in sentences[0]


def test_it_is_said_again_after_five_minutes_and_not_before():
    assert [len(warned("time-no-epoch-seconds", seconds)) for seconds in (290, 900)] == [1, 3]


def test_some_that_are_refused_or_anything_else_than_refused_vehicles_is_no_trouble():
    """Trip updates beside vehicles, half of the vehicles refused, all deleted, and a sound feed."""
    for reason, concerned in (("no-vehicle", (1, 2, 3)), ("no-place", (0, 1)), ("deleted", range(4)), ("deleted", ())):
        assert warned(reason, 600, concerned=concerned) == [], (reason, concerned)


def test_messages_of_a_broker_are_judged_together():
    source = HighFrequencyPositions(FEED, HOURS)
    wrong = [Publication(f"/hfp/v1/journey/ongoing/bus/0018/{n:05}/1/2/x", b"{}") for n in range(60)]
    with capture_logs() as logs:
        for second in range(3):
            source.of(wrong, (START + second) * 1_000_000)
    assert [log["event"] for log in logs] == ["most vehicles are refused as unreadable"]


def test_timestamps_ahead_are_left_to_those_who_judge_clocks():
    watch = RefusalWatch()
    assert all(watch.judged(1, Counter({IN_FUTURE: 500}), START * 1_000_000 + at) is None for at in range(300))
