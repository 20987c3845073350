"""A message, a line or a file that holds an array is that many events, each judged alone and stored once."""

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.relation import NeighbouringRelation
from stream.config.servers import KafkaConfig
from stream.diagnosis.live import newest_messages
from stream.diagnosis.observing import observe_file, observe_messages
from stream.diagnosis.reading import ageless, read_recording
from stream.ingestion import decoding
from stream.ingestion.arrays import MAX_ARRAY_BYTES, MAX_EVENTS, Cutter, elements, first_element
from stream.ingestion.decoding import Decoder
from stream.ingestion.formats import feed_format
from stream.ingestion.pseudonyms import load_user_key
from stream.messages.message import REJECTED, validator
from stream.messages.topics import INPUT_SETTINGS
from stream.sources.lines import Lines, RecordingError
from stream.sources.recording import Recording
from stream.storage.row_store import RowStore
from tests.stream.sources.recordings import feed, gathered
from tests.support import feeding
from tests.support.builders import riders_config
from tests.support.feeding import (
    KEY,
    NOW_US,
    START_MS,
    array,
    create_topic,
    make_config,
    messages,
    produce,
    refusals,
    until_true,
)
from tests.support.ingesting import Ingesting
from tests.support.live_events import every_speed
from tests.support.stored_rows import stored_rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def event(**changes: Any) -> bytes:
    return json.dumps(json.loads(feeding.event("bus-1", START_MS)) | changes).encode()


def decoder(arrays: bool = True) -> Decoder:
    return Decoder(make_config(), KEY, arrays=arrays)


def test_each_element_is_judged_alone_and_a_bad_one_is_named_by_its_index():
    values = [
        event(user="a"),
        array(event(user="b"), b'{"user": }', event(user="c", speed=float("nan")), b"7", b"[]", event(lat=3), event()),
        None,
        b" [ ] ",
        array(event(user="e")),
    ]
    batch = decoder().decode(values, NOW_US)
    assert batch.index.tolist() == [0, 1, 1, 4]
    assert refusals(batch) == [
        (1, 1, "not-json"),
        (1, 2, "not-finite"),
        (1, 3, "missing-field"),
        (1, 4, "missing-field"),
        (1, 5, "out-of-domain"),
        (2, -1, "tombstone"),
        (3, -1, "missing-field"),
    ]
    alone = decoder().decode([event(user="a"), event(user="b"), event(), event(user="e")], NOW_US)
    assert (batch.rows == alone.rows).all()
    assert batch.messages == len(values)


def test_elements_of_messages_that_were_appended_at_different_times_are_judged_by_their_own(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_FUTURE", timedelta(seconds=1))
    config = make_config()
    second = array(event(time=START_MS + 10_000), event(time=START_MS))
    arrived = np.array([START_MS * 1000, START_MS * 1000 + 10_000_000, START_MS * 1000])
    batch = Decoder(config, KEY).decode([array(event()), second, second], arrived)
    assert batch.index.tolist() == [0, 1, 1, 2]
    assert refusals(batch) == [(2, 0, "in-future")]


def test_what_an_array_may_cost_is_bounded():
    fitting = array(*[event()] * (MAX_ARRAY_BYTES // 90))
    assert 1 << 16 < len(fitting) <= MAX_ARRAY_BYTES
    assert len(decoder().decode([fitting], NOW_US).rows) == MAX_ARRAY_BYTES // 90
    for refused in (array(*[b"{}"] * (MAX_EVENTS + 1)), fitting + b" " * MAX_ARRAY_BYTES, event(x="y" * (1 << 16))):
        assert [reason for *_, reason in refusals(decoder().decode([refused], NOW_US))] == ["too-large"]
    deep = array(b"[" * 20_000 + b"]" * 20_000, event())
    assert refusals(decoder().decode([deep], NOW_US)) == [(0, 0, "not-json")]
    flood = [array(*[b"{}"] * 4_000)] * 50
    assert decoder().decode_part(flood, NOW_US).messages <= decoding.AT_ONCE // 4_000 + 1


@pytest.mark.parametrize("relation", NeighbouringRelation)
@pytest.mark.parametrize(
    "message",
    [
        b"[]" * (1 << 17),
        b"[" + b"{}" * 131_000 + b"]",
        b'{"type":"Notification","data":[' + b"{}" * 130_000 + b"]}",
        b"x" * (1 << 16),
    ],
    ids=["many arrays", "no commas", "notification", "no JSON"],
)
def test_of_messages_that_are_refused_as_a_whole_no_more_are_looked_at_at_once_than_of_others(message, relation):
    """So the event loop is not blocked by a batch of them, of which gzip makes a few kilobytes."""
    judge = Decoder(make_config().model_copy(update={"relation": relation}), KEY)
    batch = judge.decode_part([message] * 100, NOW_US)
    assert batch.messages <= 1 + 32 * decoding.AT_ONCE // len(message)
    assert len(batch.refused) == batch.messages


def test_an_array_that_is_no_json_is_not_read_behind_its_end_or_more_elements_than_are_wanted():
    endless = b"[" + b"NaN," * 50_000 + b"0]"
    assert len(elements(endless) or ()) == 50_001
    assert 100 < len(elements(endless, 100) or ()) < 50_000
    assert elements(b"[1,NaN] [" + b"0," * 50_000 + b"0]") is None


def test_the_first_element_is_known_from_the_beginning_of_an_array_however_the_rest_is_formed():
    for message in (
        array(event(), event()),
        b" " + array(event(), b"NaN"),
        b"[" + event() + b"," + b"{" * 200_000 + b"]",
    ):
        assert first_element(message) == event()
    assert first_element(json.dumps({"type": "Notification", "data": [{"a": 1}]}).encode()) == b'{"a": 1}'
    for nothing in (b"[]", b"{}", b'{"Notification"', b"[" + b" " * 5_000 + b"1,NaN]", b""):
        assert first_element(nothing) == b""


def test_a_notification_of_a_context_broker_is_its_entities_and_one_event_a_list_is_no_array_of_events():
    body = {"id": "n", "type": "Notification", "subscriptionId": "s", "data": [json.loads(event()), {"user": "x"}]}
    batch = decoder().decode([json.dumps(body).encode(), json.dumps(body | {"type": "Other"}).encode()], NOW_US)
    assert batch.index.tolist() == [0]
    assert refusals(batch) == [(0, 1, "missing-field"), (1, -1, "missing-field")]
    fields = {"user": "0", "time": "1", "lat": "2", "lng": "3", "value": "4", "time_format": "epoch-ms"}
    positional = Decoder(make_config(feed={"format": "declared", "fields": fields}), KEY)
    batch = positional.decode([json.dumps(["a", START_MS, 30.2, -97.7, 20.0]).encode(), b"[1,2]"], NOW_US)
    assert (len(batch.rows), refusals(batch)) == (1, [(1, -1, "missing-field")])


def test_one_bad_element_of_a_notification_is_refused_alone():
    for bad in (event(speed=float("nan")), event(note="\ud800"), b'{"user": }', b'{"x": "],"}'):
        data = array(*(event(user=f"bus-{at}") for at in range(5)), bad, event())
        value = b' {"data" : ' + data + b', "id": "\\"data\\": [", "type": "Notification"}\n'
        batch = decoder().decode([value], NOW_US)
        assert len(batch.rows) + len(batch.refused) == 7
        assert batch.refused.tolist() in ([], [0])
        assert batch.element.tolist() in ([], [5])
    for none in (b'{"type": "Notification", "data": 7, "x": NaN}', b'{"id": "Notification", "data": [NaN]}'):
        assert [element for _, element, _ in refusals(decoder().decode([none], NOW_US))] == [-1]


def test_under_participation_no_user_decides_whether_the_events_of_another_count():
    """Whatever else an array holds, and however large or damaged it is, none of its events counts."""
    judge = Decoder(make_config().model_copy(update={"relation": NeighbouringRelation.PARTICIPATION}), KEY)
    mine = json.loads(event())
    notification = json.dumps({"type": "Notification", "data": [mine]}).encode()
    for others in ([], [event(user="other")], [b"{"], [b"]"], [b"{}"] * MAX_EVENTS, [b" " * MAX_ARRAY_BYTES]):
        batch = judge.decode([event(), array(event(), *others), event()], NOW_US)
        assert batch.index.tolist() == [0, 2]
        assert batch.element.tolist() == [-1]
    assert [reason for *_, reason in refusals(judge.decode([array(event()), notification], NOW_US))] == [
        "several-events"
    ] * 2


@pytest.mark.parametrize("single", [b'{"user": }', event()], ids=["refused", "sound"])
def test_a_batch_with_an_array_is_decoded_once(single, monkeypatch):
    """Pieces of a batch whose arrays are at its end, or alternate with other messages, cost what its bytes cost."""
    original, read = feed_format(make_config().feed), 0

    def counting(value: bytes) -> Any:
        nonlocal read
        read += len(value)
        return original.decode(value)

    monkeypatch.setattr(decoding, "feed_format", lambda feed: replace(original, decode=counting))
    judge = decoder()
    monkeypatch.setattr(decoding, "AT_ONCE", 20)
    pair = array(event(), event())
    for values in ([single] * 200 + [pair] * 50, [single, pair] * 50):
        read = 0
        batch = judge.decode(values, NOW_US)
        assert batch.messages == len(values)
        assert read <= sum(map(len, values))


async def test_arrays_that_two_readers_read_at_once_are_stored_once_and_bad_elements_reported(
    kafka, redis, redis_url, topic_name, monkeypatch
):
    """Both readers store every message, in pieces of other sizes, so each is delivered twice."""
    monkeypatch.setattr(decoding, "AT_ONCE", 100)
    single = messages(2_000)
    batched = [array(*single[at : at + 23]) for at in range(0, 1_000, 23)]
    values = [value for pair in zip(batched, single[1_000:], strict=False) for value in pair]
    await create_topic(kafka, topic_name, 2)
    expected = Decoder(make_config(), KEY).decode(values, NOW_US)
    assert expected.element.max() > 0
    async with Ingesting(topic_name, kafka, redis_url, "a") as one, Ingesting(topic_name, kafka, redis_url, "b") as two:
        for reader in (one, two):  # one that comes later would begin after what the other has stored
            await reader.ingestor.assigned.wait()
        await produce(kafka, topic_name, values, 2)
        kinds = ("events_ingested_total", "events_duplicate_total")
        twice = 2 * len(expected.rows)
        await until_true(lambda: sum(reader.count(kind) for reader in (one, two) for kind in kinds) >= twice, 60)
        assert sum((await RowStore(redis, "bus").next_offsets()).values()) == len(values)
    assert await stored_rows(redis) == sorted(row.tobytes() for row in expected.rows)
    assert one.count("events_ingested_total") + two.count("events_ingested_total") == len(expected.rows)
    bodies = [json.loads(report.value) for report in one.reports]
    assert sum(body["count"] for body in bodies) == len(expected.refused)
    assert all(validator(REJECTED).is_valid(body) for body in bodies)
    named = [body for body in bodies if "first_element" in body]
    assert named
    for body in named:
        message = values[2 * body["first_offset"] + body["partition"]]
        assert (elements(message) or [])[body["first_element"]] == b"rubbish"


async def test_the_events_of_a_message_are_in_time_by_the_moment_when_it_was_appended(
    kafka, redis, redis_url, topic_name
):
    await create_topic(kafka, topic_name, 1, INPUT_SETTINGS)
    now = time.time()
    fixes = [(1, now), (2, now - 600), (3, now)]
    value = array(*(event(time=round(moment * 1000), speed=speed) for speed, moment in fixes))
    await produce(kafka, topic_name, [value], 1)
    live = {"lateness": "append-time", "slot": "60s", "allowed_delay": "10s"}
    async with Ingesting(topic_name, kafka, redis_url, **live) as ingesting:
        kinds = ("events_ingested_total", "events_late_total")
        await until_true(lambda: sum(map(ingesting.count, kinds)) == 3, 60)
        assert await every_speed(redis) == [100, 300]
        assert ingesting.count("events_late_total") == 1
    values, arrived_us, _ = await newest_messages(KafkaConfig(bootstrap=kafka), topic_name, 100)
    seen = observe_messages(values, arrived_us, 100)
    assert (len(seen), seen.kind) == (3, "JSON, messages of a topic")
    assert len(set(seen.arrived_us.tolist())) == 1


FILES = {
    "one array over lines": json.dumps([json.loads(event(speed=n)) for n in range(9)], indent=2).encode(),
    "one array on one line": array(*(event(speed=n) for n in range(9))),
    "an array a line": b"\n".join(array(event(speed=n), event(speed=n + 1), event(speed=n + 2)) for n in (0, 3, 6)),
    "objects over lines": b"\n".join(json.dumps(json.loads(event(speed=n)), indent=1).encode() for n in range(9)),
    "arrays one after the other": b"\n".join(
        json.dumps([json.loads(event(speed=n + k)) for k in range(3)], indent=1).encode() for n in (0, 3, 6)
    ),
    "notifications": b"\n".join(
        b'{"type":"Notification","data":' + array(*(event(speed=n + k) for k in range(3))) + b"}" for n in (0, 3, 6)
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_arrays_is_its_events_each_keyed_by_its_vehicle(name, tmp_path):
    path = tmp_path / "day.json"
    path.write_bytes(FILES[name])
    with Recording(path, "canonical", feed()) as recording:
        read = gathered(recording)
    assert [json.loads(value)["speed"] for value in read.values] == list(range(9))
    assert read.keys == [b"bus-1"] * 9
    assert read.unread == 0
    assert len(observe_file(path, 100)) == 9


@pytest.mark.parametrize("damaged", [0, 5], ids=["first line", "sixth line"])
def test_a_damaged_line_of_a_fleet_costs_no_other(damaged, tmp_path):
    """Each line is the array of a fleet of 3 500 and longer than what is read at a time."""
    fleet = array(*[event()] * 3_500)
    lines = [fleet] * 8
    lines[damaged] = fleet[:-1]
    path = tmp_path / "day.json"
    path.write_bytes(b"\n".join(lines))
    assert len(fleet) > 1 << 18
    assert [line for block in Lines(path) for line in block] == lines


def test_brackets_that_do_not_match_in_json_over_lines_are_an_error_with_their_place(tmp_path):
    path = tmp_path / "day.json"
    text = FILES["one array over lines"].replace(b" }", b"", 1)
    path.write_bytes(text)
    with pytest.raises(RecordingError, match=r"day\.json: brackets do not match from byte \d+ of its text; \d+ bytes"):
        list(Lines(path))


def test_a_bad_element_of_a_file_is_passed_on_alone_and_a_huge_one_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("stream.sources.lines.LONGEST_LINE", 4_000)
    huge = event(note='a "quoted" \\ [{,' * 40_000), b'{"open": [' + b"1," * 300_000 + b"2]}"
    path = tmp_path / "day.json"
    path.write_bytes(b"[\n" + b",\n".join([event(), b'{"user": }', *huge, b"", event(user="last")]) + b"\n]\n")
    values = [line for lines in Lines(path) for line in lines]
    assert (values[0], values[1], values[-1]) == (event(), b'{"user": }', event(user="last"))
    assert len(values) == 5
    assert [len(value) for value in values[2:4]] == [1024, 1024]


@given(st.lists(JSON, min_size=1, max_size=4), st.integers(1, 40), st.sampled_from([None, 1]))
@settings(max_examples=40)
def test_a_text_is_cut_alike_however_it_comes(trees, step, indent):
    text = json.dumps(trees, indent=indent).encode()
    assert [json.loads(part) for part in elements(text) or []] == trees
    cutter = Cutter(1 << 20)
    values = [part for at in range(0, len(text), step) for part in cutter.feed(text[at : at + step])]
    assert [json.loads(part) for part in values] == trees
    assert cutter.rest() == []


@given(
    st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"x", b" ", b"\n"]), max_size=60),
    st.integers(1, 9),
)
def test_no_text_makes_the_cutter_fail_or_keep_more_than_its_bound(parts, longest):
    cutter, size = Cutter(longest), 0
    for part in parts:
        size += sum(map(len, cutter.feed(part)))
        assert cutter.kept_bytes <= longest + 3
    assert size <= sum(map(len, parts)) + 1024
    cutter.rest()


ALICE, BOB = event(user="alice"), event(user="bob", time=START_MS + 1)
OF_TWO = {
    "an array": array(ALICE, BOB),
    "a stray bracket": array(ALICE + b"]", BOB),
    "no number": array(ALICE.replace(b"20.0", b"NaN"), BOB),
    "no end": array(ALICE, BOB)[:-1],
    "over lines": b"[\n" + ALICE + b",\n" + BOB + b"\n]",
    "a bracket before the lines": b"[\n" + ALICE + b"\n" + BOB,
}


@pytest.mark.parametrize("text", OF_TWO.values(), ids=OF_TWO.keys())
def test_offline_under_participation_a_line_counts_as_the_message_does_and_no_line_decides_about_another(
    text, tmp_path
):
    """Else it would follow from what alice sends whether bob counts."""
    box = {"south": 30.1, "west": -97.9, "north": 30.6, "east": -97.5}
    config, path = riders_config(tmp_path, **{"feed.domain": box}), tmp_path / "day.ndjson"
    rows, kept = text.split(b"\n"), []
    judge = Decoder(ageless(config), load_user_key(config.privacy.user_key_file))
    for order in (rows, [BOB, *rows], [*rows, BOB]):
        path.write_bytes(b"\n".join(order) + b"\n")
        read, refused = read_recording(config, path, "canonical")
        batch = judge.decode(order, NOW_US)
        assert read["user"].tolist() == batch.rows["user"].tolist()
        assert refused.refused == len(batch.reason)
        kept.append(len(read))
    assert kept[1] == kept[2] == kept[0] + 1, "a line decided about another"
