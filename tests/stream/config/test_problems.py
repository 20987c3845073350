"""Every wrong value of every key is refused with the key, what was found and what to write instead."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from stream.config import Config, ConfigError, load_config
from stream.config.loading import keys, problems
from stream.local import REPO_ROOT


class FileOnly(Config):
    """Without the environment, which is slow to look through."""

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        return (init_settings,)


BUS, RIDERS = (REPO_ROOT / "config" / f"{name}.toml" for name in ("bus-fleet", "riders-live"))
KEYS = [path for path, _ in keys(Config)]
WRONG: list[Any] = [
    "x",
    "",
    -1,
    0,
    10**400,
    1.5,
    -1e308,
    math.nan,
    math.inf,
    True,
    [],
    ["x"],
    [1, 1],
    {},
    {"x": 1},
    {"sparse": "x"},
]
REMEDY = re.compile(
    r"[;,:] (?:so "
    r")?(?:write|add|give|set|choose|lower|raise|remove|make|keep|name|drop|round|leave|enlarge|put|merge)\b"
)


def broken(path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Shipped files with something wrong at ``path``: a value of another kind, none, or a key with another name."""
    of_both = ("relation", "hexagons", "speed", "privacy", "participation")
    for file in (BUS, RIDERS) if path[0] in of_both else (BUS,):
        shipped = tomllib.loads(file.read_text(encoding="utf-8"))
        for leaf, value in [(path[-1], value) for value in [*WRONG, None]] + [(path[-1] + "x", 1)]:
            data = copy.deepcopy(shipped)
            section = data
            for name in path[:-1]:
                section = section.setdefault(name, {})
            if value is None:
                section.pop(leaf, None)
            else:
                section[leaf] = value
            yield data


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_every_problem_names_a_key_and_a_remedy_and_nothing_of_pydantic(path: tuple[str, ...]) -> None:
    refused = 0
    for data in broken(path):
        try:
            FileOnly(**data)
        except ValidationError as error:
            for line in problems(error, Config, {}):
                key, _, sentence = line.partition(": ")
                assert re.fullmatch(r"\(whole file\)|[\w.\[\]-]+", key), line
                assert REMEDY.search(line), line
                assert not re.search(r"[Ii]nput|valid (tuple|dictionary)|Extra|Field required|should", sentence), line
                assert len(line) < 700, line
                refused += 1
    assert refused, "nothing was wrong with any of the values"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("speed.statistics", "mean", "speed.statistics: found 'mean'; write a list in brackets of one of 'mean', 'mov"),
        (
            "speed.statistics",
            ["man"],
            "speed.statistics.0: found 'man'; write one of 'mean', 'moving_mean', 'variance'",
        ),
        ("privacy.epsilon", 2000, "privacy.epsilon: found 2000; write a number above 0 and of at most 1000"),
        ("hexagons.resolution", 6.5, "found 6.5; write a whole number of at least 0 and of at most 15"),
        ("feed.nme", "x", "feed.nme: there is no such key; write feed.name if that is meant, or remove it"),
        ("feed.epsilon", 1, "write privacy.epsilon or histogram.epsilon if that is meant"),
        ("feed.name", "Bus fleet", "feed.name: found 'Bus fleet'; write at most 32 lower-case letters"),
        ("feed.domain", "Austin", "feed.domain: found 'Austin'; write a section with south, west, north, east"),
        ("privacy.epsilon", True, "epsilon is true or false"),
        ("feed.timezone", "America", "IANA"),
        ("feed.timezone", "localtime", "IANA"),
        ("window.slot", "1ms", "once per second"),
        ("window.slot", "1500ms", "whole number of seconds"),
        ("privacy.period", "36h", "give whole days"),
        ("operator.host", "not a host", "operator.host: 'not a host' is neither an IP address nor a host name"),
        ("public.host", "300.1.1.1", "public.host"),
        ("kafka.bootstrap", "broker", "has no port"),
        ("kafka.bootstrap", "broker:9092,other:x", "'x' of 'other:x'"),
        ("redis.url", "redis://127.0.0.1:x/0", "is not a number"),
        ("redis.url", "redis://127.0.0.1:6379/zero", "port or database"),
        ("redis.cluster", ["redis-2"], "has no port"),
        ("redis.cluster", ["127.0.0.1:6066"], "operator.port and redis.cluster both take port 6066"),
        ("operator.port", 8080, "operator.port and public.port both take port 8080"),
        ("operator.port", 6379, "operator.port and redis.url both take port 6379"),
    ],
)
def test_a_wrong_value_is_repeated_with_its_bounds(key: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(BUS, **{key: value})
    assert says in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "worker_1", "kafka.example.org", "0.0.0.0"])
def test_names_of_machines_are_taken(host: str) -> None:
    assert load_config(BUS, **{"operator.host": host}).operator.host == host


def test_one_port_on_two_machines_or_chosen_by_the_system_is_taken() -> None:
    load_config(BUS, **{"operator.host": "10.0.0.1", "public.host": "10.0.0.2", "operator.port": 80, "public.port": 80})
    load_config(BUS, **{"operator.port": 0, "public.port": 0})
    with pytest.raises(ConfigError, match="both take port 80"):
        load_config(BUS, **{"operator.host": "0.0.0.0", "operator.port": 80, "public.port": 80})


def test_a_password_in_a_refused_address_is_not_repeated() -> None:
    for url in ("http://worker:secret@host/0", "redis://:sec/ret@host:x/0", "redis://host/zero?password=secret"):
        with pytest.raises(ConfigError, match="redis") as refused:
            load_config(BUS, **{"redis.url": url})
        assert "ret" not in str(refused.value).replace("redis", "")


@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "redis://127.0.0.1:6379/1"])
def test_a_cluster_has_hosts_and_one_database(url: str) -> None:
    with pytest.raises(ConfigError, match="hosts and database 0 only"):
        load_config(BUS, **{"redis.url": url, "redis.cluster": ["127.0.0.1:6380"]})
