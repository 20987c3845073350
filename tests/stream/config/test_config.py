"""Which configuration a command reads, and what is refused in it: every wrong value of every key and variable with
what was found and what to write instead, every secret that others can read. No address is shown with its
credentials. Keys are changed in place, and nothing else is. ``init`` writes the rows of the table of fleets, which
the README prints. Section [histogram]: a configuration that could not draw is refused, and every accepted one can
draw."""

import copy
import json
import math
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from dpcore.noise import Noise
from dpcore.packing import MOST_PACKED
from dpcore.relation import NeighbouringRelation
from dpcore.smoothing import MOST_CELLS
from dpcore.spatial import HTF, Domain, E2EPriv, euler_inference
from stream.config import Config, ConfigError, find_config, load_config, template
from stream.config.alerts import WebhookConfig
from stream.config.fleets import FLEET_MAPS
from stream.config.histogram import MAX_MESSAGE_BYTES, MECHANISMS, PAPER_TUNING_AREAS, Inference
from stream.config.loading import keys, problems
from stream.config.rewriting import rewritten, toml
from stream.config.servers import redacted
from stream.ingestion.pseudonyms import existing_user_key, load_user_key
from stream.local.kafka import REPO_ROOT
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.serve.alerts.watching import signing_secret
from stream.serve.received import received
from stream.servers.connection import first_line
from stream.statistics.histograms.fixes import fixes_of
from stream.statistics.histograms.histograms import draw_histograms, histogram_body, mechanism_of, regions_of
from stream.statistics.plan import decode_plan, encode_plan
from stream.terms import Terms
from tests.support import hourly
from tests.support.builders import (
    EVERY_MECHANISM,
    bus_config,
    located_rows,
    riders_config,
    uncommented,
    with_histograms,
)
from tests.support.command import run
from tests.support.environment import write_secret
from tests.support.nightly import nightly_but
from tests.support.releasing import build_messages, planned_with_fixes

BUS, RIDERS = (REPO_ROOT / "config" / f"{name}.toml" for name in ("bus-fleet", "riders-live"))
SHIPPED = BUS.read_text(encoding="utf-8")
OPTIONS = {"_cli_parse_args": "['--help']", "_env_file": "'/etc/passwd'", "_secrets_dir": "'/etc'"}
OPTIONS |= {"_case_sensitive": "1", "__pydantic_self__": "1", "_env_nested_max_split": "'a'"}
DEEP = ["[" * 5000, "9" * 5000, "[0x" + "f" * 6000 + "]", "{ a = 0x" + "f" * 6000 + " }"]


NONE: list[tuple[str | None, str | None]] = [
    *[(f"{name} = {value}\n{SHIPPED}", f"{name}: there is no such key") for name, value in OPTIONS.items()],
    (SHIPPED.replace('relation = "values"', ""), "relation"),
    (None, "no such file"),
    ("relation = ", "TOML"),
    ("\x00", "TOML"),
    *[(SHIPPED.replace('topic = "bus.positions"', f"topic = {value}"), None) for value in DEEP],
]


@pytest.mark.parametrize("case", range(len(NONE)))
def test_a_file_that_is_no_configuration_or_sets_an_option_of_the_library_that_reads_it_is_refused(tmp_path, case):
    """There is no default of the relation; values too deep or too long are refused as any wrong value."""
    file, (text, says) = tmp_path / "c.toml", NONE[case]
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
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
    with pytest.raises(ConfigError, match=r"not for privacy\.horizon"):
        bus_config(tmp_path, **{"privacy.horizon": {"period": "28d", "budget": 100.0}, "ledger.name": "city"})
    with pytest.raises(ConfigError, match=r"ledger\.name: found 'City'; write at most 32 lower-case letters"):
        bus_config(tmp_path, **{"ledger.name": "City"})


class FileOnly(Config):
    """Without the environment, which is slow to look through."""

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        return (init_settings,)


KEYS = [path for path, _ in keys(Config)]
WRONG: list[Any] = ["x", "", -1, 0, 10**400, 1.5, -1e308, math.nan, math.inf, True]
WRONG += [[], ["x"], [1, 1], {}, {"x": 1}, {"sparse": "x"}]
VERBS = "write|add|give|set|choose|lower|raise|remove|make|keep|name|drop|round|leave|enlarge|put|merge"
REMEDY = re.compile(rf"[;,:] (?:so )?(?:{VERBS})\b")


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


def test_a_wrong_value_is_refused_with_its_key_and_its_bounds():
    for key, value, says in [
        ("relation", "record", "relation"),
        ("relation", "participation", "go together"),
        ("privacy.epsilon", -1, "privacy.epsilon"),
        ("privacy.budget", 0.5, "no window could ever be released"),
        ("window.slot", "7h", "does not divide"),
        ("privacy.horizon", {"period": "28d", "budget": 1.0}, "below privacy.budget"),
        ("privacy.horizon", {"period": "36h", "budget": 100.0}, "whole periods"),
        ("window.slot", "an hour", "whole number with"),
        ("feed.timezone", "Mars/Olympus", "IANA"),
        ("feed.domain", {"south": 2, "north": 1, "west": 0, "east": 1}, "no area"),
        ("feed.format", "declared", "feed.fields"),
        ("speed.statistics", ["mean", "mean"], "twice"),
        ("value.upper", 65.001, "multiple"),
        ("hexagons.resolution", 16, "hexagons.resolution"),
        ("speed.statistics", "mean", "found 'mean'; write a list in brackets of one of 'mean', 'mov"),
        ("speed.statistics", ["man"], "speed.statistics.0: found 'man'; write one of 'mean', 'moving_mean'"),
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
        load_config(hourly.BUS)
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
    load_config(hourly.BUS)


def test_names_of_the_operators_choice_are_no_misspelt_keys(monkeypatch):
    monkeypatch.setenv("HEXVEIL_HISTOGRAM", '{"mechanisms": ["htf"], "epsilon": 1.0}')
    monkeypatch.setenv("HEXVEIL_HISTOGRAM__PRESET__HTF", "paper")
    config = load_config(hourly.BUS, **{"privacy.budget": 96.0})
    assert config.histogram is not None
    assert config.histogram.preset == {"htf": "paper"}


def test_a_wrong_value_names_the_variable_that_it_came_from(monkeypatch):
    monkeypatch.setenv("HEXVEIL_SPEED__STATISTICS", '"mean"')
    monkeypatch.setenv("HEXVEIL_FEED__DOMAIN__SOUTH", "far")
    with pytest.raises(ConfigError) as refused:
        load_config(hourly.BUS)
    assert "speed.statistics (from HEXVEIL_SPEED__STATISTICS): found 'mean'; write a list" in str(refused.value)
    assert "feed.domain.south (from HEXVEIL_FEED__DOMAIN__SOUTH): found 'far'; write a number" in str(refused.value)


@pytest.mark.parametrize("name", ["HEXVEIL_SPEED__STATISTICS", "HEXVEIL_FEED__DOMAIN", "HEXVEIL_PRIVACY"])
@pytest.mark.parametrize("value", ["mean", "", "[", "[" * 100_000])
def test_a_list_or_section_that_is_no_json_names_its_variable(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        load_config(hourly.BUS)
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


TEXT = """\
# mine
[window]
slot = "1h" # an hour

[speed]
# statistics = ["p50"]
statistics = ["mean", "variance"]
[speed.more]
slot = 1
"""


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


PLACES = ("named.toml", "environment.toml", "hexveil.toml", "config/bus-fleet.toml")
"""From first to last resort; after them comes the shipped template."""


@pytest.mark.parametrize("last", range(len(PLACES) + 1))
def test_the_order_is_command_line_environment_here_config_folder_template(last, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = PLACES[last:]
    for place in there:
        Path(place).parent.mkdir(exist_ok=True)
        shutil.copy(BUS, place)
    named = Path("named.toml") if "named.toml" in there else None
    environment = {"HEXVEIL_CONFIG": "environment.toml"} if "environment.toml" in there else {}
    chosen = find_config(named, "values", environment)
    assert chosen.file == (Path(there[0]) if there else template("values"))
    assert load_config(chosen).privacy.user_key_file.resolve() == (
        tmp_path / ("config/var/user.key" if there == PLACES[3:] else "var/user.key")
    )


def test_every_relation_has_its_own_file_and_template(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for relation in ("values", "participation"):
        assert load_config(find_config(None, relation, {})).relation == relation
    monkeypatch.chdir(REPO_ROOT)
    assert find_config(None, "participation", {}).file == Path("config/riders-live.toml")


def test_a_file_that_was_named_and_is_missing_is_never_replaced_by_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(BUS, "hexveil.toml")
    for chosen in (
        find_config(Path("no.toml"), "values", {}),
        find_config(None, "values", {"HEXVEIL_CONFIG": "no.toml"}),
    ):
        with pytest.raises(ConfigError, match=r"no\.toml: no such file; 'hexveil init no\.toml'"):
            load_config(chosen)


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "Configuration: hexveil.toml (found here)\n"), (["-c", "hexveil.toml"], "")]
)
def test_the_configuration_that_was_found_is_said_and_one_that_was_named_is_not(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(BUS, "hexveil.toml")
    assert run("check", *arguments).stderr == said


def test_the_template_that_is_taken_is_that_of_the_relation_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for relation in ("values", "participation"):
        monkeypatch.setenv("HEXVEIL_RELATION", relation)
        said = f"the template of relation '{relation}': there is no hexveil.toml here, 'hexveil init' writes one"
        assert said in run("check").stderr


def test_relative_paths_are_relative_to_the_file_wherever_a_command_is_started(tmp_path, monkeypatch):
    file = tmp_path / "deployment" / "hexveil.toml"
    file.parent.mkdir()
    kafka = '[kafka]\nsecurity_protocol = "SSL"\nca_file = "ca.pem"\ncertificate_file = "/etc/client.pem"\n'
    kafka += 'key_file = "/etc/client.key"\n'
    file.write_text(BUS.read_text().replace('user_key_file = "var/user.key"', "").partition("[kafka]")[0] + kafka)
    for folder in (tmp_path, file.parent):
        monkeypatch.chdir(folder)
        config = load_config(file if folder == tmp_path else "hexveil.toml")
        assert config.privacy.user_key_file.resolve() == file.parent / "var" / "user.key"
        assert config.kafka.ca_file is not None
        assert config.kafka.ca_file.resolve() == file.parent / "ca.pem"
        assert config.kafka.certificate_file == Path("/etc/client.pem")


def test_paths_of_the_environment_and_of_callers_are_relative_to_the_working_folder(monkeypatch):
    assert load_config(BUS, **{"privacy.user_key_file": "mine.key"}).privacy.user_key_file == Path("mine.key")
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", "theirs.key")
    assert load_config(BUS).privacy.user_key_file == Path("theirs.key")


READERS: dict[str, Callable[[Path], object]] = {
    "user key": load_user_key,
    "user key of others": existing_user_key,
    "password": lambda path: first_line(path, "kafka.password_file"),
    "webhook": lambda path: signing_secret(WebhookConfig(url="http://127.0.0.1/", secret_file=path)),
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "secret", "name:0123456789-0123456789-0")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_secret_that_others_can_read_is_refused_with_the_remedy(secret, read):
    if read in (READERS["user key"], READERS["user key of others"]):
        secret.write_bytes(bytes(32))
    read(secret)
    for mode in (0o640, 0o604, 0o660, 0o601):
        secret.chmod(mode)
        with pytest.raises(ValueError, match=f"{secret}.*chmod 600") as caught:
            read(secret)
        assert "0123" not in str(caught.value)


def test_a_secret_mounted_for_a_group_of_this_process_is_accepted_with_a_word(secret, monkeypatch):
    """Kubernetes mounts secrets as files of root with the group ``fsGroup``; a worker cannot change their mode."""
    secret.write_bytes(bytes(32))
    monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
    secret.chmod(0o440)
    with capture_logs() as logs:
        assert load_user_key(secret) == bytes(32)
    assert [(entry["file"], entry["group"]) for entry in logs] == [(str(secret), secret.stat().st_gid)]
    secret.chmod(0o444)
    with pytest.raises(ValueError, match=r"mode 0444.*belongs to user.*fsGroup"):
        load_user_key(secret)


VALUES, PARTICIPATION = NeighbouringRelation.VALUES, NeighbouringRelation.PARTICIPATION
ROWS = [(relation, row) for relation, rows in FLEET_MAPS.items() for row in rows]
LIVE_ROWS = [(relation, row) for relation, row in ROWS if row.kind == "live"]
CELL_KM2 = {5: "250", 6: "36", 7: "5", 8: "0.7"}


def checked(file: Path, *options: str) -> str:
    """What ``hexveil check`` says of a file that is sound."""
    return run("check", "--config", file, *options).output


def written(path: Path, relation: NeighbouringRelation, vehicles: int, kind: str = "live") -> str:
    run("init", path, "--relation", relation, "--vehicles", vehicles, "--map", kind)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("relation", "row"), LIVE_ROWS)
def test_a_live_map_is_fresh_within_a_minute_and_its_budget_lasts(relation, row, tmp_path):  # type: ignore[no-untyped-def]
    """Under "values" grants roll to the end of the day; under "participation" a budget of 4 pays for two half-hours."""
    written(tmp_path / "mine.toml", relation, row.vehicles + 1)
    config = load_config(tmp_path / "mine.toml")
    margin = config.window.publication_margin
    assert (config.window.allowed_delay + margin if margin else config.window.allowed_delay).total_seconds() <= 60
    assert (config.hexagons.resolution, config.window.slot) == (row.resolution, row.slot)
    assert (config.speed.clipping, config.public.map) == (row.clipping, "live")
    if relation == PARTICIPATION:
        assert (config.privacy.accounting, config.privacy.budget) == ("zcdp", 4.0)
        assert config.privacy.windows is not None
        assert config.privacy.windows >= 2 * 3, "two half-hours touch three windows each at most"
    else:
        assert (config.privacy.accounting, config.privacy.admission) == ("zcdp", "rolling")
        assert (config.hexagons.merge_until, config.speed.sum_cap) == (None, 0.0)


def test_the_typical_map_of_a_small_fleet_says_so_and_is_charged_as_a_live_one(tmp_path):
    files = [tmp_path / f"{kind}.toml" for kind in ("live", "typical")]
    for file in files:
        written(file, VALUES, 300, file.stem)
    live, typical = map(load_config, files)
    assert (typical.public.map, typical.hexagons.resolution, typical.window.slot) == ("typical", 7, timedelta(hours=1))
    assert typical.privacy == live.privacy
    assert "Typical, not live: the page opens on what each hour is usually like" in checked(file)
    assert json.loads(checked(file, "--json"))["map"] == "typical"
    assert "Typical" not in checked(tmp_path / "live.toml")


def test_nothing_typical_is_promised_where_nothing_foretells_or_was_measured(tmp_path):
    with pytest.raises(ConfigError, match=r"public\.map 'typical' shows what 'kalman' makes"):
        load_config(REPO_ROOT / "config/bus-fleet.toml", **{"public.map": "typical", "speed.post_processing": []})
    refused = run("init", tmp_path / "mine.toml", "--relation", PARTICIPATION, "--map", "typical", code=2)
    assert "measured under relation 'values' alone" in refused.output
    assert not (tmp_path / "mine.toml").exists()


def test_the_shipped_riders_publish_no_more_cells_than_the_model_remembers(tmp_path):
    said = checked(RIDERS)
    assert "Every window publishes 3166 cells" in said
    assert "remembers" not in said
    wide = tmp_path / "wide.toml"
    wide.write_text(RIDERS.read_text(encoding="utf-8").replace("south = 30.1", "south = 29.5"), encoding="utf-8")
    assert f"the model remembers {MOST_CELLS} of these cells. Make participation.geojson" in checked(wide)


@pytest.mark.parametrize(
    ("name", "relation", "vehicles"), [("bus-live", VALUES, 1_600), ("riders-live", PARTICIPATION, 10_000)]
)
def test_the_shipped_live_files_are_what_init_writes(name, relation, vehicles, tmp_path):
    shipped = tomllib.loads((REPO_ROOT / "config" / f"{name}.toml").read_text(encoding="utf-8"))
    said = f"hexveil init config/{name}.toml --relation {relation} --vehicles {vehicles} --force"
    assert tomllib.loads(written(tmp_path / "mine.toml", relation, vehicles)) == shipped, said


def test_the_readme_prints_the_table_and_the_picture_shows_it():
    lines = [
        f'| "{relation}" | {f"{row.vehicles:,} or more".replace(",", " ") if row.vehicles else "fewer"} | '
        f"resolution {row.resolution}, {CELL_KM2[row.resolution]} km² | {row.slot.total_seconds() / 60:g} min"
        f"{', typical: not live' if row.kind == 'typical' else ''} | "
        f"{row.within:.0%} | ±{row.half_width:g} km/h |"
        for relation, row in ROWS
    ]
    assert "\n".join(lines) in (REPO_ROOT / "README.md").read_text(encoding="utf-8")
    picture = (REPO_ROOT / "docs/images/fleet.svg").read_text(encoding="utf-8")
    live = [row for _, row in ROWS if row.kind == "live"]
    assert re.findall(r">(\d+) %<", picture) == [f"{100 * row.within:.0f}" for row in live]
    assert re.findall(r">±(\S+) km/h<", picture) == [f"{row.half_width:g}" for row in live]


@pytest.mark.parametrize("command", [["push", "--token-file"], ["hfp", "mqtts://agency.example", "--login"]])
def test_a_command_refuses_a_secret_that_others_can_read(secret, command):
    secret.chmod(0o644)
    done = run(*command, secret, "--config", BUS, code=2)
    assert f"run: chmod 600 {secret}" in " ".join(done.stderr.split())
    assert "0123" not in done.output


@pytest.mark.parametrize("euler", [False, True], ids=["", "euler"])
@pytest.mark.parametrize("file", [hourly.BUS, hourly.RIDERS])
def test_the_commented_example_is_a_sound_configuration(file, euler, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(uncommented(file, euler=euler), encoding="utf-8")
    config = load_config(path, **{"privacy.budget": 100.0})
    assert config.histogram is not None
    assert config.histogram.mechanisms == (("sparse", "euler") if euler else ("sparse",))
    assert config.histogram.model_fields_set | {"euler"} == set(type(config.histogram).model_fields)
    if euler:
        assert config.histogram.euler is not None
        set_here, known = config.histogram.euler.model_fields_set, set(type(config.histogram.euler).model_fields)
        assert set_here == known, "the example names every parameter"


def test_every_mechanism_and_inference_of_the_library_can_be_configured():
    assert sorted(MECHANISMS) == EVERY_MECHANISM
    assert get_args(euler_inference.Inference) == get_args(Inference)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"histogram.mechanisms": []}, "histogram.mechanisms"),
    ({"histogram.mechanisms": ["dawa"]}, "histogram.mechanisms"),
    ({"histogram.mechanisms": ["ug", "ug"]}, "twice"),
    ({"histogram.mechanisms": ["ug", "euler"]}, r"\[histogram.euler\] go together"),
    ({"histogram.euler": {}}, "go together"),
    ({"histogram.epsilon": 0}, "histogram.epsilon"),
    ({"histogram.epsilon": float("nan")}, "histogram.epsilon"),
    ({"histogram.epsilon": 1e-7}, "raise epsilon"),
    ({"histogram.epsilon": 1e-3, "histogram.fixes_per_user": 2}, "raise epsilon, or lower fixes_per_user"),
    ({"histogram.epsilon": 100}, "allows epsilon 96, below the 102.* of one window"),
    ({"histogram.preset": {"euler": "paper"}}, "but mechanisms are"),
    ({"histogram.preset": {"ug": "paper"}}, "histogram.preset"),
    ({"histogram.preset": {"htf": "best"}}, "histogram.preset"),
    ({"histogram.epsilon": 0.009, "histogram.preset": {"htf": "paper"}}, "does not pay for a tree of height"),
    ({"histogram.fixes_per_user": 0}, "fixes_per_user"),
    ({"histogram.rows": 0}, "histogram.rows"),
    ({"histogram.columns": 2000}, "histogram.columns"),
    ({"histogram.rows": 1024, "histogram.columns": 1024, "histogram.mechanisms": ["privlet"]}, "brokers refuse"),
    ({"histogram.rows": 1024, "histogram.columns": 1024, "histogram.epsilon": 0.2}, "or raise epsilon"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 30.1, "east": -97.5}}, "no area"),
    ({"histogram.domain": {"south": 30.1, "west": -97.9, "north": 31.1, "east": -97.5}}, "outside feed.domain"),
    ({"histogram.bounds": 1}, "histogram.bounds"),
]


@pytest.mark.parametrize("relation", ["values", "participation"])
@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_a_bad_section_is_refused_with_its_key_and_a_remedy(tmp_path, relation, settings, says):
    with pytest.raises(ConfigError, match=says):
        with_histograms(relation, tmp_path, ["htf", "ug"], **settings)
    with pytest.raises(ConfigError, match=r"privacy.budget allows rho 12, below the 50.5 of one window"):
        with_histograms("zcdp", tmp_path, ["ug"], **{"histogram.epsilon": 10.0})


def least(name: str, s: int, goal: str, grid: tuple[int, int], tmp_path: Path) -> Config:
    """The least epsilon that is accepted, on a grid of this shape."""
    rows, columns = grid
    side = {"histogram.rows": rows, "histogram.columns": columns}
    settings = side | {"histogram.epsilon": 1e-3 * s, "histogram.fixes_per_user": s, "histogram.goal": goal}
    settings |= {"speed.suppression": "none", "speed.allocation": "uniform", "speed.clipping": "none"}
    if name == "euler":
        settings["histogram.euler"] = {"rows": min(rows, 12), "columns": min(columns, 12), "diameter_m": 0.5}
    return with_histograms("values", tmp_path, [name], **settings)


@pytest.mark.parametrize("grid", nightly_but([(1, 1), (3, 2)], [(1, 1), (1, 40), (3, 2), (64, 64)]))
@pytest.mark.parametrize("name", EVERY_MECHANISM)
def test_whatever_is_accepted_can_be_drawn_in_the_bytes_that_were_foreseen(tmp_path, name, grid):
    """Users are charged before the draw: a mechanism that then failed would cost them their budget for nothing."""
    for s, goal in ((1, "absolute"), (7, "absolute"), (7, "relative")):
        config = least(name, s, goal, grid, tmp_path)
        for rows in (located_rows(1, 60, users=40), located_rows(1, 0)):
            plan, contributions, fixes = planned_with_fixes(config, rows)
            messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
            (message,) = [m for m in messages if m.topic == SPATIAL_HISTOGRAM]
            assert config.histogram is not None
            assert len(message.value) <= config.histogram.largest_message(name) + 1_000 < MAX_MESSAGE_BYTES + 1_000


PRESETS = ("e2epriv", "euler", "htf")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_papers_setting_and_reaches_the_mechanism(tmp_path, name):
    rows = located_rows(1, 60, users=40)
    tuned, _, _ = planned_with_fixes(with_histograms("values", tmp_path, [name]), rows)
    plan, _, fixes = planned_with_fixes(
        with_histograms("values", tmp_path, [name], **{"histogram.preset": {name: "paper"}}), rows
    )
    assert tuned.terms.histogram is not None
    assert plan.terms.histogram is not None
    assert decode_plan(encode_plan(plan)).terms == plan.terms
    (drawn,) = draw_histograms(plan, fixes, Noise())
    if name == "euler":
        assert drawn.histogram.to_release()["structure"]["grade"] == "covert"
        assert histogram_body(drawn, "bus", {})["regions"]["outliers"] == "discard"
        wide, bounded = (
            regions_of(each.terms.histogram, fixes).diameters().max() for each in (tuned, plan) if each.terms.histogram
        )
        assert plan.terms.histogram.regions is not None
        assert bounded <= plan.terms.histogram.regions.diameter_m < wide
        return
    mechanism, by_default = mechanism_of(name, plan.terms.histogram), mechanism_of(name, tuned.terms.histogram)
    if isinstance(mechanism, E2EPriv) and isinstance(by_default, E2EPriv):
        assert (mechanism.objective, by_default.objective) == ("relative", "weighted")
        assert len(set(mechanism.queries.areas().tolist())) == len(PAPER_TUNING_AREAS), "one size of squares per area"
    else:
        assert (mechanism, by_default) == (HTF.published(), HTF())


@pytest.mark.parametrize(
    "name", nightly_but(["ug", "e2epriv", "htf"], ["ug", "singular", "e2epriv", "htf", "kdtree", "quadtree"])
)
def test_a_grid_of_1024_cells_a_side_is_accepted_where_what_is_released_can_be_made_to_fit_a_message(tmp_path, name):
    fine = {"histogram.rows": 1024, "histogram.columns": 1024}
    config = with_histograms("values", tmp_path, [name], **fine)
    plan, contributions, fixes = planned_with_fixes(config, located_rows(1, 2_000, users=1_500))
    messages, _ = build_messages(plan, contributions, Noise(), None, fixes)
    (histogram,) = [message for message in messages if message.topic == SPATIAL_HISTOGRAM]
    assert config.histogram is not None
    largest = config.histogram.largest_message(name)
    assert len(histogram.value) <= largest <= MAX_MESSAGE_BYTES < 4 * largest
    assert received(SPATIAL_HISTOGRAM, "x", histogram.value) is not None
    assert MOST_PACKED + 2 * 1_025 * len("1024,") + 2_000 < MAX_MESSAGE_BYTES, "the library packs no more than fits"


@pytest.mark.parametrize("goal", ["absolute", "relative"])
def test_the_goal_does_not_decide_by_which_error_e2epriv_chooses_its_size(tmp_path, goal):
    """Chosen by relative error a grid may have several times the error, see research/reproductions.md."""
    plan, _, _ = planned_with_fixes(
        with_histograms("values", tmp_path, ["e2epriv"], **{"histogram.goal": goal}), located_rows(1, 60)
    )
    assert plan.terms.histogram is not None
    mechanism = mechanism_of("e2epriv", plan.terms.histogram)
    assert isinstance(mechanism, E2EPriv)
    assert mechanism.objective == "weighted"


@pytest.mark.parametrize("fixes", nightly_but([9], [1, 9, 100]))
@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("name", ["e2epriv", "htf", "kdtree", "quadtree"])
def test_what_is_accepted_can_be_drawn_whatever_the_number_of_points(tmp_path, name, preset, fixes):
    """Users are charged first. Costs of choices move by up to ``fixes`` times as much, the noisy total decides
    the height, and all points may lie in one cell: grids of 0, 300 and 10⁹ points are drawn."""
    chosen = {"histogram.preset": {name: preset}} if name in PRESETS else {}
    for epsilon in (max(fixes / 1000, 0.02), 1000.0):
        settings = {"histogram.epsilon": epsilon, "histogram.fixes_per_user": fixes, "privacy.budget": 3000.0}
        settings |= {"histogram.rows": 64, "histogram.columns": 64} | chosen
        config = with_histograms("values", tmp_path, [name], **settings)
        plan, contributions, own = planned_with_fixes(config, located_rows(1, 60, users=40))
        assert plan.terms.histogram is not None
        assert build_messages(plan, contributions, Noise(), None, own)[0]
        mechanism = mechanism_of(name, plan.terms.histogram)
        for points in (0, 300, 10**9):
            counts = np.zeros((64, 64), dtype=np.int64)
            counts[5, 7] = points
            mechanism.fit(counts, Domain.unit_cells(64, 64), plan.terms.histogram.epsilons[0], Noise(), fixes)


def test_check_shows_what_histograms_cost_a_window_and_a_day(tmp_path):
    def check(config: str, *, as_json: bool) -> Any:
        file = tmp_path / "c.toml"
        file.write_text(config, encoding="utf-8")
        return json.loads(checked(file, "--json"))["histogram"] if as_json else " ".join(checked(file).split())

    bus = uncommented(hourly.BUS, euler=True)
    report = check(bus, as_json=True)
    assert report["epsilon"] == {"euler": 0.25, "sparse": 0.25}
    costs = {name: report[name] for name in report if "cost" in name}
    assert costs == {
        "cost_per_window": 0.5,
        "cost_per_period": 12.0,
        "window_cost_with_speed": 2.5,
        "period_cost_with_speed": 60.0,
    }
    text = check(bus, as_json=False)
    assert "euler (epsilon 0.25)" in text
    assert "pays epsilon 0.5 per window, and 12 if they have one in every window of a period" in text
    assert "budget 48.0 pays for 19 of 24 windows" in text
    assert "the whole epsilon for speed" in text
    riders = uncommented(hourly.RIDERS)
    assert "the whole epsilon for speed" not in check(riders, as_json=False)
    zcdp = re.sub(
        r"(?m)^epsilon = 2.0\nbudget = \S+$", 'accounting = "zcdp"\nbudget = 20.0\nwindows = 60\ndelta = 1e-6', riders
    )
    report = check(zcdp, as_json=True)
    assert (report["unit"], report["cost_per_window"], report["cost_per_period"]) == ("rho", 0.125, 3.0)


def test_the_box_is_half_open_and_fixes_outside_it_count_for_nobody(tmp_path):
    config = with_histograms("values", tmp_path, ["ug"])
    rows = located_rows(1, 4, users=1)
    rows["user"] = [1, 2, 3, 4]
    rows["lat"], rows["lng"] = 303_000_000, [-979_000_000, -975_000_000, -975_000_001, -979_000_001]
    plan, contributions, fixes = planned_with_fixes(config, rows)
    assert fixes.users.tolist() == [1, 3]
    grant = config.privacy.epsilon_micro
    charges = dict(zip(contributions.counts.users.tolist(), plan.charges.tolist(), strict=True))
    assert charges == {1: grant + 1_100_000, 2: grant, 3: grant + 1_100_000, 4: grant}


def test_without_the_section_nothing_of_histograms_is_read_planned_or_published(tmp_path):
    config = bus_config(tmp_path)
    assert Terms.of(config).reading.box is None
    assert fixes_of(located_rows(1, 50), Terms.of(config).reading.box) is None
    assert config.window_grant == config.privacy.ledger_grant
