"""The short fuzzing campaign, seeded: no reader breaks its contract, and planted bugs are found."""

import asyncio
import random

import pytest

from bench.fuzzing.hunting import Hunt, Target, hunt
from bench.fuzzing.messages import Messages
from bench.fuzzing.mutation import Mutator
from bench.fuzzing.targets import TARGETS

SEED = 14


@pytest.fixture(autouse=True)
def quiet_loop():
    """Targets with servers run loops of their own."""
    yield
    asyncio.set_event_loop(None)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_short_campaign_breaks_a_contract(name):
    report = hunt(TARGETS[name](), SEED, seconds=0, rounds=1)
    assert report["inputs"] >= 6
    assert report["finds"] == []


class Planted(Target):
    """A reader that raises, hangs or answers wrongly at one byte."""

    name = "planted"
    contract = "nothing happens"

    def __init__(self, bug) -> None:
        self._bug = bug

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        mutator = Mutator(rng)
        for _ in range(200):
            hunt.attempt(mutator.octets(b"sound"), self._read)

    def _read(self, data: bytes) -> None:
        if b"\xff" in data:
            self._bug()


def raises() -> None:
    raise KeyError("planted")


def ends() -> None:
    raise SystemExit(3)


def hangs() -> None:
    while True:
        pass


@pytest.mark.parametrize("bug", [raises, ends])
def test_an_error_that_no_contract_names_is_found_and_its_input_minimised(bug):
    (find,) = hunt(Planted(bug), SEED, seconds=0, rounds=1)["finds"]
    assert find["data"] == repr(b"\xff")
    assert f" {bug.__name__}" in find["where"]


def test_an_input_that_takes_for_ever_is_found(monkeypatch):
    monkeypatch.setattr("bench.fuzzing.hunting.MAX_SECONDS", 0.02)
    (find,) = hunt(Planted(hangs), SEED, seconds=0, rounds=1)["finds"]
    assert find["error"].startswith("TooSlowError")


def test_the_same_seed_tries_the_same_inputs():
    first, again, other = (hunt(Messages("itms"), seed, seconds=0, rounds=1) for seed in (1, 1, 2))
    assert first["inputs"] == again["inputs"] == other["inputs"]
    mutators = [Mutator(random.Random(seed)) for seed in (1, 1, 2)]
    one, same, different = ([mutator.json({"user": "a", "time": 1}) for _ in range(50)] for mutator in mutators)
    assert one == same != different
