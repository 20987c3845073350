"""Variables that look like keys of the configuration but set none are refused, with the nearest right name."""

from __future__ import annotations

import pytest

from stream.config import ConfigError, load_config
from tests.support import hourly

BUS = hourly.BUS


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
def test_a_misspelt_variable_is_refused_with_the_nearest_right_one(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.setenv(given, "1")
    with pytest.raises(ConfigError) as refused:
        load_config(BUS)
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
def test_variables_of_others_and_right_ones_are_taken(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    load_config(BUS)


def test_names_of_the_operators_choice_are_no_misspelt_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_HISTOGRAM", '{"mechanisms": ["htf"], "epsilon": 1.0}')
    monkeypatch.setenv("HEXVEIL_HISTOGRAM__PRESET__HTF", "paper")
    config = load_config(BUS, **{"privacy.budget": 96.0})
    assert config.histogram is not None
    assert config.histogram.preset == {"htf": "paper"}


def test_a_wrong_value_names_the_variable_that_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXVEIL_SPEED__STATISTICS", '"mean"')
    monkeypatch.setenv("HEXVEIL_FEED__DOMAIN__SOUTH", "far")
    with pytest.raises(ConfigError) as refused:
        load_config(BUS)
    assert "speed.statistics (from HEXVEIL_SPEED__STATISTICS): found 'mean'; write a list" in str(refused.value)
    assert "feed.domain.south (from HEXVEIL_FEED__DOMAIN__SOUTH): found 'far'; write a number" in str(refused.value)


@pytest.mark.parametrize("name", ["HEXVEIL_SPEED__STATISTICS", "HEXVEIL_FEED__DOMAIN", "HEXVEIL_PRIVACY"])
@pytest.mark.parametrize("value", ["mean", "", "[", "[" * 100_000])
def test_a_list_or_section_that_is_no_json_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        load_config(BUS)
    assert f"{name}: found" in str(refused.value)
    assert "as JSON" in str(refused.value)
    assert len(str(refused.value)) < 500
