"""Configurations that must be refused, with the key and the remedy. Every wrong value of every key is refused with the
key, what was found and what to write instead. Variables that look like keys of the configuration but set none are
refused, with the nearest right name. Every address is shown without its credentials, in messages, logs and tables. Keys
of a configuration are changed in place, and nothing else is."""

import copy
import math
import re
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from stream.config import Config, ConfigError, load_config
from stream.config.loading import keys, problems
from stream.config.rewriting import rewritten, toml
from stream.config.servers import redacted
from stream.local import REPO_ROOT
from tests.support import hourly
from tests.support.builders import bus_config, riders_config, with_histograms


def test_a_bad_value_is_refused_with_its_key_and_a_remedy():
    for key, value, says in [
        ("feed.nme", 1, "feed.nme"),
        ("relation", "record", "relation"),
        ("relation", "participation", "go together"),
        ("privacy.epsilon", -1, "privacy.epsilon"),
        ("privacy.budget", 0.5, "no window could ever be released"),
        ("window.slot", "7h", "does not divide"),
        ("window.slot", "an hour", "whole number with"),
        ("feed.timezone", "Mars/Olympus", "IANA"),
        ("feed.domain", {"south": 2, "north": 1, "west": 0, "east": 1}, "no area"),
        ("feed.format", "declared", "feed.fields"),
        ("speed.statistics", ["mean", "mean"], "twice"),
        ("value.upper", 65.001, "multiple"),
        ("hexagons.resolution", 16, "hexagons.resolution"),
    ]:
        with pytest.raises(ConfigError, match=says):
            load_config(BUS, **{key: value})


@pytest.mark.parametrize(
    "line",
    [
        "_cli_parse_args = ['--help']",
        "_env_file = '/etc/passwd'",
        "_secrets_dir = '/etc'",
        "_case_sensitive = 1",
        "__pydantic_self__ = 1",
        "_env_nested_max_split = 'a'",
    ],
)
def test_a_file_sets_no_option_of_the_library_that_reads_it(tmp_path, line):
    file = tmp_path / "c.toml"
    file.write_text(f"{line}\n{BUS.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{line.split()[0]}: there is no such key"):
        load_config(file)


def test_relation_has_no_default(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(BUS.read_text().replace('relation = "values"', ""))
    with pytest.raises(ConfigError, match="relation"):
        load_config(file)


@pytest.mark.parametrize("text", [None, "relation = ", "\x00"])
def test_a_file_that_is_no_configuration_is_an_error_not_a_crash(tmp_path, text):
    file = tmp_path / "c.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError):
        load_config(file)


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_a_budget_that_pays_no_window_with_its_histograms_is_refused(tmp_path, relation):
    with pytest.raises(ConfigError, match=r"no window could ever be released.*histogram\.epsilon"):
        with_histograms(relation, tmp_path, **{"privacy.epsilon": 2.0, "privacy.budget": 3.0})
    outside = {"south": -10.0, "west": -10.0, "north": 10.0, "east": 10.0}
    with pytest.raises(ConfigError, match="reaches outside"):
        with_histograms(relation, tmp_path, **{"histogram.domain": outside})


def test_feeds_that_share_a_ledger_are_refused_where_their_order_could_reveal_who_was_there(tmp_path):
    assert bus_config(tmp_path).shared_ledger is None
    assert bus_config(tmp_path, **{"ledger.name": "city"}).shared_ledger == "city"
    with pytest.raises(ConfigError, match=r"\[ledger\] name 'city' is not for relation 'participation'.*Leave out"):
        riders_config(tmp_path, **{"ledger.name": "city"})
    with pytest.raises(ConfigError, match=r"\[ledger\] name 'city' is not for \[histogram\]"):
        with_histograms("values", tmp_path, ["ug"], **{"ledger.name": "city"})
    with pytest.raises(ConfigError, match=r"ledger\.name: found 'City'; write at most 32 lower-case letters"):
        bus_config(tmp_path, **{"ledger.name": "City"})


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


def test_every_problem_names_a_key_and_a_remedy_and_nothing_of_pydantic():
    for path in KEYS:
        refused = 0
        for data in broken(path):
            try:
                FileOnly(**data)
            except ValidationError as error:
                for line in problems(error, Config, {}):
                    key, _, sentence = line.partition(": ")
                    assert re.fullmatch(r"\(whole file\)|[\w.\[\]-]+", key), line
                    assert REMEDY.search(line), line
                    assert not re.search(r"[Ii]nput|valid (tuple|dictionary)|Extra|Field required|should", sentence), (
                        line
                    )
                    assert len(line) < 700, line
                    refused += 1
        assert refused, f"{path}: nothing was wrong with any of the values"


def test_a_wrong_value_is_repeated_with_its_bounds():
    for key, value, says in [
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
    ]:
        with pytest.raises(ConfigError) as refused:
            load_config(BUS, **{key: value})
        assert says in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "worker_1", "kafka.example.org", "0.0.0.0"])
def test_names_of_machines_are_taken(host):
    assert load_config(BUS, **{"operator.host": host}).operator.host == host


def test_a_password_in_a_refused_address_is_not_repeated():
    for url in ("http://worker:secret@host/0", "redis://:sec/ret@host:x/0", "redis://host/zero?password=secret"):
        with pytest.raises(ConfigError, match="redis") as refused:
            load_config(BUS, **{"redis.url": url})
        assert "ret" not in str(refused.value).replace("redis", "")


@pytest.mark.parametrize("url", ["unix:///run/redis.sock", "redis://127.0.0.1:6379/1"])
def test_a_cluster_has_hosts_and_one_database(url):
    with pytest.raises(ConfigError, match="hosts and database 0 only"):
        load_config(BUS, **{"redis.url": url, "redis.cluster": ["127.0.0.1:6380"]})


HOURLY = hourly.BUS


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("HEXVEIL_PRIVCY__EPSILON", "HEXVEIL_PRIVACY__EPSILON"),
        ("HEXVEIL_PRIVACY_EPSILON", "HEXVEIL_PRIVACY__EPSILON"),
        ("HEXVEIL_PRIVACY__EPSILLON", "HEXVEIL_PRIVACY__EPSILON"),
        ("HEXVEIL_FEED__DOMAIN__SOUT", "HEXVEIL_FEED__DOMAIN__SOUTH"),
        ("HEXVEIL_REDIS__ULR", "HEXVEIL_REDIS__URL"),
        ("hexveil_relatoin", "HEXVEIL_RELATION"),
        ("HEXVEIL_KAFKA_JAR", "HEXVEIL_KAFKA_JARS"),
        ("HEXVEIL_EPSILON__PRIVACY__X", "HEXVEIL_"),
        ("HEXVEIL_SOMETHING__ELSE", "HEXVEIL_SECTION__KEY"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_right_one(monkeypatch, given, meant):
    monkeypatch.setenv(given, "1")
    with pytest.raises(ConfigError) as refused:
        load_config(HOURLY)
    assert f"{given}: no key has this name; write {meant}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEXVEIL_SERVICE_HOST", "10.0.0.1"),
        ("HEXVEIL_PORT_6066_TCP_ADDR", "10.0.0.1"),
        ("HEXVEIL_WORKER_PORT", "tcp://10.0.0.1:6066"),
        ("HEXVEIL_DATA", "/data"),
        ("HEXVEIL_KAFKA_JARS", "/jars"),
        ("hexveil_privacy__epsilon", "1.5"),
    ],
)
def test_variables_of_others_and_right_ones_are_taken(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    load_config(HOURLY)


def test_names_of_the_operators_choice_are_no_misspelt_keys(monkeypatch):
    monkeypatch.setenv("HEXVEIL_HISTOGRAM", '{"mechanisms": ["htf"], "epsilon": 1.0}')
    monkeypatch.setenv("HEXVEIL_HISTOGRAM__PRESET__HTF", "paper")
    config = load_config(HOURLY, **{"privacy.budget": 96.0})
    assert config.histogram is not None
    assert config.histogram.preset == {"htf": "paper"}


def test_a_wrong_value_names_the_variable_that_it_came_from(monkeypatch):
    monkeypatch.setenv("HEXVEIL_SPEED__STATISTICS", '"mean"')
    monkeypatch.setenv("HEXVEIL_FEED__DOMAIN__SOUTH", "far")
    with pytest.raises(ConfigError) as refused:
        load_config(HOURLY)
    assert "speed.statistics (from HEXVEIL_SPEED__STATISTICS): found 'mean'; write a list" in str(refused.value)
    assert "feed.domain.south (from HEXVEIL_FEED__DOMAIN__SOUTH): found 'far'; write a number" in str(refused.value)


@pytest.mark.parametrize("name", ["HEXVEIL_SPEED__STATISTICS", "HEXVEIL_FEED__DOMAIN", "HEXVEIL_PRIVACY"])
@pytest.mark.parametrize("value", ["mean", "", "[", "[" * 100_000])
def test_a_list_or_section_that_is_no_json_names_its_variable(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        load_config(HOURLY)
    assert f"{name}: found" in str(refused.value)
    assert "as JSON" in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://me:s3cret@127.0.0.1:9/0", "redis://***@127.0.0.1:9/0"),
        ("redis://:s3/cr?et@host/0", "redis://***@host/0"),
        ("unix:///run/redis.sock?db=0&password=s3cret", "unix:///run/redis.sock?db=***&password=***"),
        ("https://me:s3cret@example.org/feed?key=s3cret&agency=7", "https://***@example.org/feed?key=***&agency=***"),
        ("https://example.org/feed?s3cret", "https://example.org/feed?***"),
        ("https://example.org/feed?s3cret&agency=7", "https://example.org/feed?***&agency=***"),
        ("rediss://me:s3cret@host:port/0", "rediss://***@host:port/0"),
        ("cannot read http://me:s3cret@host/x?key=s3cret now", "cannot read http://***@host/x?key=*** now"),
    ],
)
def test_neither_user_nor_password_nor_the_value_of_a_key_is_shown(address, shown):
    assert redacted(address) == shown
    assert "s3cret" not in redacted(address)


TEXT = (
    '# mine\n[window]\nslot = "1h" # an hour\n\n[speed]\n# statistics = ["p50"]\nstatistics = '
    '["mean", '
    '"variance"]\n[speed.more]\nslot = 1\n'
)


def test_only_the_named_keys_change_and_comments_stay():
    changes = {
        "window.slot": timedelta(minutes=90),
        "speed.statistics": ("mean",),
        "speed.clipping": "none",
        "new.key": 0.5,
    }
    text = rewritten(TEXT, changes, "why")
    assert tomllib.loads(text) == {
        "window": {"slot": "90m"},
        "speed": {"statistics": ["mean"], "clipping": "none", "more": {"slot": 1}},
        "new": {"key": 0.5},
    }
    assert 'slot = "90m"  # why; an hour' in text
    assert text.startswith("# mine\n")


@pytest.mark.parametrize(
    "text",
    [
        'speed = { statistics = ["mean"] }\n',
        '[speed]\nstatistics = [\n  "mean",\n]\n',
        '[speed]\n"statistics" = ["p50"]\n',
    ],
    ids=["inline table", "several lines", "quoted key"],
)
def test_what_is_not_written_line_by_line_is_refused_with_the_values(text):
    with pytest.raises(ConfigError, match=r'set by hand: speed.statistics = \["mean", "variance"\]'):
        rewritten(text, {"speed.statistics": ("mean", "variance")}, "why")


def test_durations_are_written_in_their_largest_unit():
    spans = (timedelta(days=1), timedelta(hours=4), timedelta(minutes=90), timedelta(seconds=45))
    assert [toml(span) for span in spans] == ['"1d"', '"4h"', '"90m"', '"45s"']


def test_the_environment_overrides_the_file(monkeypatch):
    monkeypatch.setenv("HEXVEIL_PRIVACY__EPSILON", "1.5")
    assert load_config(BUS).privacy.epsilon_micro == 1_500_000


def test_the_shipped_configuration_is_sound_and_init_writes_the_same():
    config = load_config(BUS)
    assert config.relation == "values"
    assert config.value.upper_quanta == 6500
    assert load_config(REPO_ROOT / "config" / "riders-live.toml").relation == "participation"


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "[0x" + "f" * 6000 + "]", "{ a = 0x" + "f" * 6000 + " }"])
def test_values_that_are_too_deep_or_too_long_are_refused_as_any_wrong_value(tmp_path, value):
    file = tmp_path / "c.toml"
    text = BUS.read_text(encoding="utf-8").replace('topic = "bus.positions"', f"topic = {value}")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_config(file)
