"""The release protocol as it is shipped, explored in every order of its steps; see :mod:`tests.model`."""

from collections.abc import Iterator

import pytest

from stream.local.kafka import REPO_ROOT
from stream.local.server import RedisServer
from tests.model.__main__ import QUICK
from tests.model.exploring import explore
from tests.model.server import StateServer
from tests.model.variants import BROKEN, BROKEN_SHARED, SHARED, SLOW
from tests.model.world import world_of
from tests.support.nightly import nightly_but


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateServer]:
    with RedisServer(tmp_path_factory.mktemp("model"), appendfsync="no") as redis:
        yield StateServer(redis)


@pytest.mark.parametrize("setting", QUICK, ids=["a crash", "a set-back", "any order"])
def test_two_workers_publish_a_window_once_and_charge_before_whoever_fails_when(server, tmp_path, setting):
    graph = explore(world_of(server, tmp_path, setting))
    assert graph.trace is None, "\n".join(graph.trace)
    assert len(graph.states) > 1_000


@pytest.mark.nightly
def test_two_feeds_of_one_ledger_spend_one_budget_in_every_order_of_their_steps(server, tmp_path):
    graph = explore(world_of(server, tmp_path, SHARED))
    assert graph.trace is None, "\n".join(graph.trace)
    assert len(graph.states) > 1_000


@pytest.mark.parametrize(
    "variant",
    nightly_but((*BROKEN, BROKEN_SHARED[0], BROKEN_SHARED[2]), (*BROKEN, *BROKEN_SHARED)),
    ids=lambda of: of.name,
)
def test_a_broken_protocol_is_refuted(server, tmp_path, variant):
    graph = explore(world_of(server, tmp_path, variant))
    assert graph.trace is not None
    print("\n".join(graph.trace))


def test_a_broken_protocol_differs_from_the_shipped_one():
    """A text that the code does not contain any more would leave the variant as shipped."""
    for variant in [*BROKEN, *BROKEN_SHARED, SLOW]:
        storage = REPO_ROOT / "stream" / "storage"
        sources = [
            REPO_ROOT / "stream" / "protocol" / "release_protocol.py",
            *storage.glob("*.py"),
            *storage.glob("lua/*"),
        ]
        texts = [source.read_text(encoding="utf-8") for source in sources]
        for old, _ in variant.exchanges:
            assert sum(text.count(old) for text in texts) == 1, old
