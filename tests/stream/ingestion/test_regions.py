"""Messages that declare regions: each is read or refused by itself, alone, in arrays and between other messages. The
user key is secret and single; pseudonyms depend on it and on nothing else."""

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.config import Config
from stream.ingestion import decoding
from stream.ingestion.arrays import MAX_EVENTS
from stream.ingestion.decoding import AT_ONCE, MAX_MESSAGE_BYTES, REASONS, Batch, Decoder, Reason
from stream.ingestion.pseudonyms import Pseudonyms, UserKeyError, key_fingerprint, load_user_key
from tests.support.builders import SLOT, with_histograms

KEY, NOW_US = b"k" * 32, (SLOT + 120) * 1_000_000
CORNER = {"lat": 30.2, "lng": -97.7}
CORNERS = [CORNER, {"lat": 30.21, "lng": -97.7}, {"lat": 30.2, "lng": -97.71}]


@pytest.fixture(scope="module", params=["values", "participation"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Config:
    return declaring(request.param, tmp_path_factory.mktemp("declared"))


def declaring(relation: str, folder: Path) -> Config:
    euler = {"origin": "declared", "regions_per_user": 2}
    quality = {"feed.quality.teleport_km_h": 0, "feed.quality.frozen": "0s"}
    return with_histograms(relation, folder, ["euler"], **({"histogram.euler": euler} | quality))


def message(**fields: Any) -> bytes:
    """A canonical event; fields that are None are left out."""
    event = {"user": "rider", "time": (SLOT + 60) * 1000, "speed": 0} | fields
    return json.dumps({name: value for name, value in event.items() if value is not None}).encode()


def region(*corners: object, **fields: Any) -> bytes:
    return message(region=list(corners) or CORNERS, **fields)


def array(*events: bytes) -> bytes:
    return b"[" + b",".join(events) + b"]"


def notification(*events: bytes) -> bytes:
    return b'{"type": "Notification", "data": ' + array(*events) + b"}"


def refusals(batch: Batch) -> list[tuple[int, int, str]]:
    """Message, element and reason of each refused event."""
    columns = batch.refused.tolist(), batch.element.tolist(), batch.reason.tolist()
    return [(at, element, REASONS[code].value) for at, element, code in zip(*columns, strict=True)]


@pytest.mark.parametrize("several", [array, notification])
def test_a_region_among_several_events_is_refused_alone_and_stops_nothing(several, tmp_path):
    decoder, point = Decoder(declaring("values", tmp_path), KEY), message(**CORNER)
    batch = decoder.decode([several(region(), point), region(), several(region(), region()), point], NOW_US)
    assert batch.index.tolist() == [0, 1, 1, 1, 3]
    assert refusals(batch) == [(0, 0, "several-events"), (2, 0, "several-events"), (2, 1, "several-events")]


def test_under_participation_an_array_with_a_region_is_refused_as_a_whole(tmp_path):
    decoder = Decoder(declaring("participation", tmp_path), KEY)
    batch = decoder.decode([array(region(), message(**CORNER)), array(region()), region(), region()], NOW_US)
    assert batch.index.tolist() == [2] * 3 + [3] * 3
    assert refusals(batch) == [(0, -1, "several-events"), (1, -1, "several-events")]


@pytest.mark.parametrize(
    ("refused", "element", "reason"),
    [
        (region(CORNER, {"lat": "30.2", "lng": -97.7}), 1, "wrong-type"),
        (region(CORNER, {"lat": True, "lng": -97.7}), 1, "wrong-type"),
        (region(CORNER, CORNER, [30.2, -97.7]), 2, "wrong-type"),
        (region(CORNER, CORNER | {"user": "other"}), 1, "wrong-type"),
        (region(CORNER, {"lat": 30.2}), 1, "missing-field"),
        (region(CORNER, {"lat": None, "lng": -97.7}), 1, "missing-field"),
        (region(CORNER, {"lat": float("nan"), "lng": -97.7}), 1, "not-finite"),
        (region(CORNER).replace(b"30.2", b"1e400"), 0, "not-finite"),
        (region(CORNER, {"lat": 10**400, "lng": -97.7}), 1, "not-finite"),
        (message(region=[]), -1, "missing-field"),
        (message(region=CORNER), -1, "wrong-type"),
        (message(region=0), -1, "wrong-type"),
        (region(speed=float("inf")), -1, "not-finite"),
        (region(speed="fast"), -1, "wrong-type"),
        (region(time=None), -1, "missing-field"),
        (region(user=None), -1, "missing-field"),
        (region(**CORNER), -1, "several-events"),
        (region(lat=30.2), -1, "several-events"),
        (message(region=[], **CORNER), -1, "several-events"),
        (region(*[CORNER] * 3_000), -1, "too-large"),
        (region()[:-1], -1, "not-json"),
    ],
)
def test_a_bad_region_has_its_reason_and_names_the_corner_at_fault(config, refused, element, reason):
    batch = Decoder(config, KEY).decode([region(CORNER), refused, message(**CORNER)], NOW_US)
    assert batch.index.tolist() == [0, 2]
    assert refusals(batch) == [(1, element, reason)]


def test_a_null_is_an_absent_field_as_elsewhere(config):
    alone = json.dumps(json.loads(message(**CORNER)) | {"region": None}).encode()
    with_place = json.dumps(json.loads(region()) | {"lat": None, "lng": None}).encode()
    assert Decoder(config, KEY).decode([alone, with_place], NOW_US).index.tolist() == [0, 1, 1, 1]


def test_sources_that_need_one_event_each_refuse_a_region_beside_a_place_too(config):
    batch = Decoder(config, KEY, arrays=False).decode([region(), region(**CORNER), message(**CORNER)], NOW_US)
    assert refusals(batch) == [(0, -1, "several-events"), (1, -1, "several-events")]


def test_what_a_region_may_cost_is_bounded(config):
    """The densest message has fewer corners than an array may have events, and a piece ends after so many."""
    most = (MAX_MESSAGE_BYTES - 60) // len(b'{"lat":0,"lng":0},')
    dense = json.dumps(json.loads(message(region=[{"lat": 0, "lng": 0}] * most)), separators=(",", ":")).encode()
    assert len(dense) <= MAX_MESSAGE_BYTES < len(dense) + 20
    assert most < MAX_EVENTS
    part = Decoder(config, KEY).decode_part([dense] * 50, NOW_US)
    assert part.messages <= AT_ONCE // most + 1
    assert len(part.refused) == part.messages * most


PARTS = st.sampled_from(
    [
        region(),
        region(CORNER),
        region(CORNER, {"lat": 10.0, "lng": -97.7}),
        region(user=""),
        region("x"),
        region(**CORNER),
        message(**CORNER),
        message(**CORNER, speed=-1),
        b"NaN",
        b"{:}",
        b"{}",
        b'{"region": [NaN]}',
    ]
)
MESSAGES = PARTS | st.lists(PARTS, min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from([array(*parts), notification(*parts)])
)


@given(st.lists(MESSAGES | st.none(), max_size=8), st.integers(1, 12))
def test_regions_arrays_and_points_in_any_order_and_pieces_are_read_as_each_alone(config, values, at_once):
    decoder = Decoder(config, KEY)
    whole, alone = decoder.decode(values, NOW_US), [decoder.decode([value], NOW_US) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "AT_ONCE", at_once)
        pieces = decoder.decode(values, NOW_US)
    for batch in (whole, pieces):
        assert batch.index.tolist() == [at for at, one in enumerate(alone) for _ in one.rows]
        assert batch.rows.tolist() == [row for one in alone for row in one.rows.tolist()]
        assert refusals(batch) == [(at, *rest) for at, one in enumerate(alone) for _, *rest in refusals(one)]
        assert batch.messages == len(values)
    assert {*whole.index.tolist(), *whole.refused.tolist()} == set(range(len(values)))
    assert Reason.UNDECODABLE not in {REASONS[code] for code in whole.reason}


def test_the_key_file_is_made_once_and_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "var" / "user.key"
    key = load_user_key(path)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_user_key(path) == key
    assert [entry.name for entry in path.parent.iterdir()] == ["user.key"]


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_the_wrong_length_is_refused(tmp_path, size):
    path = tmp_path / "user.key"
    path.write_bytes(bytes(size))
    path.chmod(0o600)
    with pytest.raises(UserKeyError, match="instead of 32"):
        load_user_key(path)


def test_processes_that_start_together_share_one_key(tmp_path):
    context = multiprocessing.get_context("fork")
    with context.Pool(8) as pool:
        keys = pool.map(load_user_key, [tmp_path / "user.key"] * 32, chunksize=1)
    assert len(set(keys)) == 1


def test_pseudonyms_depend_on_the_key_and_outlive_the_cache():
    key, other = b"a" * 32, b"b" * 32
    small, large = Pseudonyms(key, capacity=150), Pseudonyms(key)
    users = [f"bus-{i % 7}" for i in range(50)]
    assert [small[user] for user in users] == [large[user] for user in users]
    assert len(small) <= 2
    assert Pseudonyms(other)["bus-1"] != large["bus-1"]
    assert key_fingerprint(key) != key_fingerprint(other)


@pytest.mark.parametrize("user", ["bus-{:04}", "{:04}" + "😀" * 63], ids=["short", "long"])
def test_memory_of_pseudonyms_is_bounded_however_long_identifiers_are(user):
    """Python takes four bytes for each character of an identifier with one emoji."""
    pseudonyms, capacity = Pseudonyms(bytes(32), capacity=64_000), 64_000
    sizes = []
    for number in range(3_000):
        _ = pseudonyms[user.format(number)]
        sizes.append(sum(map(sys.getsizeof, pseudonyms)) if number % 97 == 0 else 0)
    assert capacity / 2 < max(sizes) <= capacity


@pytest.mark.parametrize("user", ["", "x" * 257, "é" * 129, "\ud800"])
def test_identifiers_without_a_pseudonym_raise(user):
    with pytest.raises(KeyError):
        Pseudonyms(bytes(32))[user]
