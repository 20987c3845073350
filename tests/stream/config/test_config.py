"""Configurations that must be refused, with the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.config import ConfigError, load_config
from stream.local import REPO_ROOT
from tests.support.builders import bus_config, riders_config, with_histograms

BUS = REPO_ROOT / "config" / "bus-fleet.toml"


def test_the_shipped_configuration_is_sound_and_init_writes_the_same() -> None:
    config = load_config(BUS)
    assert config.relation == "values"
    assert config.value.upper_quanta == 6500
    assert load_config(REPO_ROOT / "config" / "riders-live.toml").relation == "participation"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
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
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_a_remedy(key: str, value: object, says: str) -> None:
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
def test_a_file_sets_no_option_of_the_library_that_reads_it(tmp_path: Path, line: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"{line}\n{BUS.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{line.split()[0]}: there is no such key"):
        load_config(file)


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000, "[0x" + "f" * 6000 + "]", "{ a = 0x" + "f" * 6000 + " }"])
def test_values_that_are_too_deep_or_too_long_are_refused_as_any_wrong_value(tmp_path: Path, value: str) -> None:
    file = tmp_path / "c.toml"
    text = BUS.read_text(encoding="utf-8").replace('topic = "bus.positions"', f"topic = {value}")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load_config(file)


def test_relation_has_no_default(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(BUS.read_text().replace('relation = "values"', ""))
    with pytest.raises(ConfigError, match="relation"):
        load_config(file)


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_PRIVACY__EPSILON", "1.5")
    assert load_config(BUS).privacy.epsilon_micro == 1_500_000


@pytest.mark.parametrize("text", [None, "relation = ", "\x00"])
def test_a_file_that_is_no_configuration_is_an_error_not_a_crash(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "c.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError):
        load_config(file)


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_a_budget_that_pays_no_window_with_its_histograms_is_refused(tmp_path: Path, relation: str) -> None:
    with pytest.raises(ConfigError, match=r"no window could ever be released.*histogram\.epsilon"):
        with_histograms(relation, tmp_path, **{"privacy.epsilon": 2.0, "privacy.budget": 3.0})
    outside = {"south": -10.0, "west": -10.0, "north": 10.0, "east": 10.0}
    with pytest.raises(ConfigError, match="reaches outside"):
        with_histograms(relation, tmp_path, **{"histogram.domain": outside})


def test_feeds_that_share_a_ledger_are_refused_where_their_order_could_reveal_who_was_there(tmp_path: Path) -> None:
    assert bus_config(tmp_path).shared_ledger is None
    assert bus_config(tmp_path, **{"ledger.name": "city"}).shared_ledger == "city"
    with pytest.raises(ConfigError, match=r"\[ledger\] name 'city' is not for relation 'participation'.*Leave out"):
        riders_config(tmp_path, **{"ledger.name": "city"})
    with pytest.raises(ConfigError, match=r"\[ledger\] name 'city' is not for \[histogram\]"):
        with_histograms("values", tmp_path, ["ug"], **{"ledger.name": "city"})
    with pytest.raises(ConfigError, match=r"ledger\.name: found 'City'; write at most 32 lower-case letters"):
        bus_config(tmp_path, **{"ledger.name": "City"})
