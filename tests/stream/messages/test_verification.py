"""What ``hexveil verify`` finds: whoever holds releases sees if one was changed, left out, drawn again or put
elsewhere."""

import asyncio
import gzip
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from stream.config import Config
from stream.config.servers import KafkaConfig
from stream.local.server import RedisServer
from stream.messages.chain import Signer, SigningKeyError, decode_link, encode_link, load_public, new_signer
from stream.messages.message import WINDOW
from stream.messages.topics import create_topics
from stream.messages.verification import Verification
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.protocol.markers import each_released
from stream.protocol.publishing import KafkaPublisher, make_producer
from stream.protocol.release_protocol import STEPS, ReleaseProtocol, signer_of
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.release_store import ReleaseStore
from stream.windows import utc_text
from tests.support.builders import PLAINLY_PLANNED, SLOT, bus_config, random_rows
from tests.support.closing import close_until, protocol_of
from tests.support.releasing import verified

SLOTS = [SLOT + 3600 * hour for hour in range(4)]
ROWS = np.concatenate([random_rows(hour, 40, users=5, slot=slot) for hour, slot in enumerate(SLOTS)])


def signing(folder: Path, signer: Signer | None = None) -> Config:
    """A configuration whose close markers are signed by ``signer`` (None: by a new one)."""
    (signer or new_signer()).write(folder / "signing.key")
    return bus_config(folder, **PLAINLY_PLANNED, **{"signing.key_file": str(folder / "signing.key")})


class Released:
    """Windows released to lines."""

    def __init__(self, redis: Redis, config: Config) -> None:
        self.redis, self.config, self.out = redis, config, io.StringIO()

    def protocol(self, config: Config | None = None, **hooks: Any) -> ReleaseProtocol:
        chosen = config or self.config
        rows, signer = MemoryRows(split_by_slot(ROWS, chosen)), signer_of(chosen)
        return protocol_of(self.redis, chosen, LinePublisher(self.out), rows, signer=signer, **hooks)

    async def close(self, *slots: int, config: Config | None = None) -> None:
        await Ledger.of(self.redis, self.config).start_generation(birth=0)
        for slot in slots:
            await self.protocol(config).close(slot)

    async def give_up(self) -> None:
        """As an operator who lost the key: the windows to come continue the chain without its endorsement."""
        store = ReleaseStore.of(self.redis, self.config)
        stored = (await store.carried()).link
        last = decode_link(stored)
        assert last is not None
        assert not await store.replace_link(b"another", b"{}")
        assert await store.replace_link(stored, encode_link(last.unsigned()))

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def kinds(lines: list[str], **given: Any) -> set[str]:
    return {problem["kind"] for problem in verified(lines, **given)["problems"]}


@pytest.fixture(scope="module")
def honest(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Lines of four signed windows, and the public key."""
    folder = tmp_path_factory.mktemp("honest")

    async def release() -> list[str]:
        async with Redis.from_url(redis_server.url) as redis:
            await redis.flushall()
            released = Released(redis, signing(folder))
            await released.close(*SLOTS)
            return released.lines

    return asyncio.run(release()), load_public(folder / "signing.key.pub")


def marker_at(lines: list[str], nth: int) -> int:
    """The line of the close marker of window ``nth``."""
    return [at for at, line in enumerate(lines) if f'"topic":"{WINDOW}"' in line][nth]


def changed(line: str, **fields: Any) -> str:
    """The line with other fields in its value."""
    record = json.loads(line)
    record["value"] |= fields
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def without(lines: list[str], window: int) -> list[str]:
    """All lines but those of one window."""
    first = marker_at(lines, window - 1) + 1 if window else 0
    return lines[:first] + lines[marker_at(lines, window) + 1 :]


def redrawn(lines: list[str]) -> list[str]:
    """The second window with another mean in its first cell and a marker made to fit, as by an operator without the
    key."""
    at = marker_at(lines, 0) + 1
    record = json.loads(lines[at])
    mean = record["value"]["mean"] | {"value": 1.0, "raw": 1.0}
    return [*lines[:at], changed(lines[at], mean=mean), *lines[at + 1 :]]


def reordered(lines: list[str]) -> list[str]:
    first, second = marker_at(lines, 0), marker_at(lines, 1)
    return lines[first + 1 : second + 1] + lines[: first + 1] + lines[second + 1 :]


DEEDS: dict[str, tuple[Callable[[list[str]], list[str]], set[str]]] = {
    "a message is left out": (lambda lines: lines[1:], {"messages"}),
    "a window is left out": (lambda lines: without(lines, 1), {"left-out"}),
    "a message is changed": (redrawn, {"digest"}),
    "the windows stand in another order": (reordered, {"order"}),
    "a window is published twice with other numbers": (
        lambda lines: [*lines, redrawn(lines)[marker_at(lines, 0) + 1]],
        {"twice"},
    ),
    "a marker is changed": (
        lambda lines: [
            changed(line, budget=1.0) if at == marker_at(lines, 1) else line for at, line in enumerate(lines)
        ],
        {"chain", "signature", "budget"},
    ),
    "a message is given as another cell's": (
        lambda lines: [changed(lines[0], cell=json.loads(lines[1])["value"]["cell"]), *lines[1:]],
        {"identity", "messages"},
    ),
    "the signature is missing": (
        lambda lines: [line.replace('"ce_signature"', '"ce_other"') for line in lines],
        {"signature"},
    ),
}


def test_an_honest_file_is_sound_and_says_who_signed_it(honest):
    lines, key = honest
    report = verified([*lines, *lines], trusted=[key])  # a message may be sent twice
    assert report["sound"], report["problems"]
    (feed,) = report["feeds"]
    assert (feed["windows"], feed["numbers"], feed["signed"], feed["signers"]) == (4, [1, 4], 4, [key])
    assert kinds(lines, trusted=[new_signer().public]) == {"signature"}, "another key than the reader's is found"


@pytest.mark.parametrize("deed", DEEDS)
def test_what_was_done_to_the_file_is_found(deed, honest):
    lines, key = honest
    done, expected = DEEDS[deed]
    assert kinds(done(lines), trusted=[key]) == expected


def test_of_old_windows_markers_alone_are_enough_and_of_later_ones_not(honest):
    """Topics delete messages by age, and keep close markers for ever."""
    lines, key = honest
    first, second, third = (marker_at(lines, nth) for nth in range(3))
    report = verified(lines[first:], trusted=[key])
    assert report["sound"]
    assert report["feeds"][0]["faded"] == 1
    assert kinds(lines[: second + 1] + lines[third:], trusted=[key]) == {"messages"}


async def test_a_shortened_file_and_windows_drawn_anew_with_the_same_key_are_found_by_whoever_holds_a_marker(
    honest, redis, tmp_path
):
    """An operator who has the key can make a whole new chain; only a marker that somebody kept tells them apart."""
    kept = verified(honest[0])["feeds"][0]["last_marker"]
    for kept_here, said in (([], set()), ([kept], {"held"})):
        assert kinds(without(honest[0], 3), trusted=[honest[1]], held=kept_here) == said
    config = signing(tmp_path)
    again = Released(redis, config)
    await again.close(*SLOTS)
    key = load_public(tmp_path / "signing.key.pub")
    assert kinds(again.lines, trusted=[key]) == set()
    assert kinds(again.lines, trusted=[key], held=[kept]) == {"held"}
    assert "twice" in kinds([*honest[0], *again.lines])


async def test_a_renewed_key_continues_the_chain_and_an_old_worker_commits_nothing(redis, tmp_path):
    first = new_signer()
    released = Released(redis, signing(tmp_path, first))
    await released.close(*SLOTS[:2])
    (tmp_path / "new").mkdir()
    renewed = signing(tmp_path / "new", Signer.load(tmp_path / "signing.key").renewed())
    await released.close(SLOTS[2], config=renewed)
    with pytest.raises(LedgerError, match="did not endorse"):
        await released.close(SLOTS[3])
    assert await redis.get(FeedKeys("bus").outbox(SLOTS[3])) is None
    with pytest.raises(LedgerError, match="no signing key"):
        await released.close(SLOTS[3], config=bus_config(tmp_path, **PLAINLY_PLANNED))
    await released.close(SLOTS[3], config=renewed)
    assert kinds(released.lines, trusted=[first.public]) == set()
    assert kinds(released.lines, trusted=[load_public(tmp_path / "new" / "signing.key.pub")]) == {"signature"}


async def test_an_unsigned_feed_is_chained_and_sound_and_says_that_it_is_not_signed(redis, tmp_path):
    released = Released(redis, bus_config(tmp_path, **PLAINLY_PLANNED))
    await released.close(*SLOTS)
    report = verified(released.lines)
    assert report["sound"]
    assert (report["feeds"][0]["chained"], report["feeds"][0]["signed"]) == (4, 0)
    assert kinds(without(released.lines, 1)) == {"left-out"}
    assert kinds(released.lines, trusted=[new_signer().public]) == {"signature"}


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_after_any_step_and_a_rival_leave_one_chain(step, redis, tmp_path):
    """The worker stops after ``step`` of the second window, and another one closes it and the next."""
    released = Released(redis, signing(tmp_path))
    await released.close(SLOTS[0])
    await close_until(released.protocol(), SLOTS[1], step)
    await released.close(*SLOTS[1:])
    report = verified(released.lines, trusted=[load_public(tmp_path / "signing.key.pub")])
    assert report["sound"], report["problems"]
    assert report["feeds"][0]["windows"] == 4


async def test_a_link_that_changes_between_draw_and_commit_is_followed_with_the_same_noise(redis, tmp_path):
    """An operator gives up a lost key just then."""
    released, redraws = Released(redis, signing(tmp_path)), list[int]()
    await released.close(SLOTS[0])

    async def at_draw(step: str) -> None:
        if step == "draw":
            await released.give_up()

    other = signing(tmp_path)
    await released.protocol(other, after_step=at_draw, on_redraw=lambda: redraws.append(1)).close(SLOTS[1])
    assert not redraws
    assert kinds(released.lines) == {"signature"}, "the break alone"


async def test_the_topics_are_verified_as_a_file_is(kafka, redis, tmp_path, topic_name):
    config = signing(tmp_path).model_copy(update={"kafka": KafkaConfig(bootstrap=kafka)})
    config = config.model_copy(update={"feed": config.feed.model_copy(update={"name": topic_name})})
    await create_topics(config)
    released, producer = Released(redis, config), make_producer(config.kafka)
    await Ledger.of(redis, config).start_generation(birth=0)
    await producer.start()
    try:
        for slot in SLOTS[:2]:
            await replace(released.protocol(), publisher=KafkaPublisher(producer, config.kafka)).close(slot)
    finally:
        await producer.stop()
    verification = Verification([load_public(tmp_path / "signing.key.pub")])
    async for record in each_released(config.kafka):
        if f"/{topic_name}/" in record.headers.get("ce_id", ""):
            verification.take(record)
    report = verification.finish()
    assert report["sound"], report["problems"]
    assert report["feeds"][0]["windows"] == 2


def test_the_command_prints_what_holds_and_fails_where_something_does_not(honest, hexveil, tmp_path):
    file, key = tmp_path / "releases.ndjson.gz", tmp_path / "signing.key"
    file.write_bytes(gzip.compress("\n".join(honest[0]).encode()))
    sound = subprocess.run([*hexveil, "verify", str(file)], capture_output=True, text=True, check=True)
    assert "4 windows, numbers 1 to 4" in sound.stdout
    assert "Everything that was checked holds" in sound.stdout
    assert "that noise was drawn" in sound.stdout
    subprocess.run([*hexveil, "key", "signing", str(key)], capture_output=True, check=True)
    assert key.stat().st_mode & 0o777 == 0o600
    other = [*hexveil, "verify", str(file), "--key", f"{key}.pub", "--json"]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert {problem["kind"] for problem in json.loads(refused.stdout)["problems"]} == {"signature"}
    before = load_public(f"{key}.pub")
    subprocess.run([*hexveil, "key", "signing", str(key), "--renew"], capture_output=True, check=True)
    succeeds = Signer.load(key).succeeds
    assert succeeds is not None
    assert succeeds.signer == before


async def test_after_a_lost_key_readers_see_the_break_and_the_chain_goes_on(redis, tmp_path):
    released = Released(redis, signing(tmp_path))
    await released.close(*SLOTS[:2])
    await released.give_up()
    await released.close(*SLOTS[2:], config=signing(tmp_path))
    assert [problem["text"] for problem in verified(released.lines)["problems"]] == [
        f"window {utc_text(SLOTS[2])} (number 3) is signed by another key than the one before, which did not endorse it"
    ]


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600, "no Ed25519"),
        (b"", 0o644, "chmod 600"),
    ],
)
def test_a_key_file_that_cannot_be_used_says_why(content, mode, said, tmp_path):
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(SigningKeyError, match=said):
        Signer.load(file)
