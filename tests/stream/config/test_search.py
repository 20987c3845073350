"""Which configuration a command reads, what it says about it, and what relative paths in it mean."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream.cli import app
from stream.config import ConfigError, find_config, load_config, template
from stream.local import REPO_ROOT

BUS = REPO_ROOT / "config" / "bus-fleet.toml"
PLACES = ("named.toml", "environment.toml", "hexveil.toml", "config/bus-fleet.toml")
"""From first to last resort; after them comes the shipped template."""


@pytest.mark.parametrize("last", range(len(PLACES) + 1))
def test_the_order_is_command_line_environment_here_config_folder_template(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_every_relation_has_its_own_file_and_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for relation in ("values", "participation"):
        assert load_config(find_config(None, relation, {})).relation == relation
    monkeypatch.chdir(REPO_ROOT)
    assert find_config(None, "participation", {}).file == Path("config/riders-live.toml")


def test_a_file_that_was_named_and_is_missing_is_never_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(BUS, "hexveil.toml")
    for chosen in (
        find_config(Path("no.toml"), "values", {}),
        find_config(None, "values", {"HEXVEIL_CONFIG": "no.toml"}),
    ):
        with pytest.raises(ConfigError, match=r"no\.toml: no such file; 'hexveil init no\.toml'"):
            load_config(chosen)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Configuration: hexveil.toml (found here)\n"),
        (["-c", "hexveil.toml"], ""),
    ],
)
def test_the_configuration_that_was_found_is_said_and_one_that_was_named_is_not(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(BUS, "hexveil.toml")
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 0
    assert result.stderr == said


def test_the_template_that_is_taken_is_that_of_the_relation_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for relation in ("values", "participation"):
        monkeypatch.setenv("HEXVEIL_RELATION", relation)
        result = CliRunner().invoke(app, ["check"])
        assert result.exit_code == 0, result.output
        assert (
            f"the template of relation '{relation}': there is no hexveil.toml here, 'hexveil init' writes one"
            in result.stderr
        )


def test_relative_paths_are_relative_to_the_file_wherever_a_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deployment" / "hexveil.toml"
    file.parent.mkdir()
    kafka = (
        '[kafka]\nsecurity_protocol = "SSL"\nca_file = "ca.pem"\ncertificate_file '
        "= "
        '"/etc/client.pem"\nkey_file = "/etc/client.key"\n'
    )
    file.write_text(BUS.read_text().replace('user_key_file = "var/user.key"', "").partition("[kafka]")[0] + kafka)
    for folder in (tmp_path, file.parent):
        monkeypatch.chdir(folder)
        config = load_config(file if folder == tmp_path else "hexveil.toml")
        assert config.privacy.user_key_file.resolve() == file.parent / "var" / "user.key"
        assert config.kafka.ca_file is not None
        assert config.kafka.ca_file.resolve() == file.parent / "ca.pem"
        assert config.kafka.certificate_file == Path("/etc/client.pem")


def test_paths_of_the_environment_and_of_callers_are_relative_to_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_config(BUS, **{"privacy.user_key_file": "mine.key"}).privacy.user_key_file == Path("mine.key")
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", "theirs.key")
    assert load_config(BUS).privacy.user_key_file == Path("theirs.key")
