"""Which configuration a command reads, what it says about it, and what relative paths in it mean. Every file that holds
a secret is readable by its owner only, or by the group to which an orchestrator mounts it. The table of fleets:
``init`` writes its rows, the shipped live files are two of them, and the README prints it."""

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from dpcore.relation import NeighbouringRelation
from dpcore.smoothing import MOST_CELLS
from stream.cli import app
from stream.config import Config, ConfigError, find_config, load_config, template
from stream.config.alerts import WebhookConfig
from stream.config.fleets import FLEET_MAPS
from stream.ingestion.pseudonyms import existing_user_key, load_user_key
from stream.local import REPO_ROOT
from stream.serve.alerts.watching import signing_secret
from stream.servers.connection import first_line
from tests.support.environment import write_secret

BUS_FLEET = REPO_ROOT / "config" / "bus-fleet.toml"
PLACES = ("named.toml", "environment.toml", "hexveil.toml", "config/bus-fleet.toml")
"""From first to last resort; after them comes the shipped template."""


@pytest.mark.parametrize("last", range(len(PLACES) + 1))
def test_the_order_is_command_line_environment_here_config_folder_template(last, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = PLACES[last:]
    for place in there:
        Path(place).parent.mkdir(exist_ok=True)
        shutil.copy(BUS_FLEET, place)
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
    shutil.copy(BUS_FLEET, "hexveil.toml")
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
    shutil.copy(BUS_FLEET, "hexveil.toml")
    result = CliRunner().invoke(app, ["check", *arguments])
    assert result.exit_code == 0
    assert result.stderr == said


def test_the_template_that_is_taken_is_that_of_the_relation_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for relation in ("values", "participation"):
        monkeypatch.setenv("HEXVEIL_RELATION", relation)
        result = CliRunner().invoke(app, ["check"])
        assert result.exit_code == 0, result.output
        assert (
            f"the template of relation '{relation}': there is no hexveil.toml here, 'hexveil init' writes one"
            in result.stderr
        )


def test_relative_paths_are_relative_to_the_file_wherever_a_command_is_started(tmp_path, monkeypatch):
    file = tmp_path / "deployment" / "hexveil.toml"
    file.parent.mkdir()
    kafka = (
        '[kafka]\nsecurity_protocol = "SSL"\nca_file = "ca.pem"\ncertificate_file '
        "= "
        '"/etc/client.pem"\nkey_file = "/etc/client.key"\n'
    )
    file.write_text(BUS_FLEET.read_text().replace('user_key_file = "var/user.key"', "").partition("[kafka]")[0] + kafka)
    for folder in (tmp_path, file.parent):
        monkeypatch.chdir(folder)
        config = load_config(file if folder == tmp_path else "hexveil.toml")
        assert config.privacy.user_key_file.resolve() == file.parent / "var" / "user.key"
        assert config.kafka.ca_file is not None
        assert config.kafka.ca_file.resolve() == file.parent / "ca.pem"
        assert config.kafka.certificate_file == Path("/etc/client.pem")


def test_paths_of_the_environment_and_of_callers_are_relative_to_the_working_folder(monkeypatch):
    assert load_config(BUS_FLEET, **{"privacy.user_key_file": "mine.key"}).privacy.user_key_file == Path("mine.key")
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", "theirs.key")
    assert load_config(BUS_FLEET).privacy.user_key_file == Path("theirs.key")


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


def written(path: Path, relation: NeighbouringRelation, vehicles: int, kind: str = "live") -> str:
    named = ["--relation", relation, "--vehicles", str(vehicles), "--map", kind]
    done = CliRunner().invoke(app, ["init", str(path), *named])
    assert done.exit_code == 0, done.output
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
    live, file = load_config_of(tmp_path / "live.toml", "live"), tmp_path / "typical.toml"
    typical = load_config_of(file, "typical")
    assert (typical.public.map, typical.hexagons.resolution, typical.window.slot) == ("typical", 7, timedelta(hours=1))
    assert typical.privacy == live.privacy
    said = CliRunner().invoke(app, ["check", "--config", str(file)]).output
    assert "Typical, not live: the page opens on what each hour is usually like" in said
    assert json.loads(CliRunner().invoke(app, ["check", "--config", str(file), "--json"]).output)["map"] == "typical"
    assert "Typical" not in CliRunner().invoke(app, ["check", "--config", str(tmp_path / "live.toml")]).output


def load_config_of(file: Path, kind: str) -> Config:
    written(file, VALUES, 300, kind)
    return load_config(file)


def test_nothing_typical_is_promised_where_nothing_foretells_or_was_measured(tmp_path):
    with pytest.raises(ConfigError, match=r"public\.map 'typical' shows what 'kalman' makes"):
        load_config(REPO_ROOT / "config/bus-fleet.toml", **{"public.map": "typical", "speed.post_processing": []})
    refused = CliRunner().invoke(
        app, ["init", str(tmp_path / "mine.toml"), "--relation", PARTICIPATION, "--map", "typical"]
    )
    assert refused.exit_code == 2
    assert "measured under relation 'values' alone" in refused.output
    assert not (tmp_path / "mine.toml").exists()


def test_the_shipped_riders_publish_no_more_cells_than_the_model_remembers(tmp_path):
    said = CliRunner().invoke(app, ["check", "--config", str(REPO_ROOT / "config/riders-live.toml")]).output
    assert "Every window publishes 3166 cells" in said
    assert "remembers" not in said
    wide = (REPO_ROOT / "config/riders-live.toml").read_text(encoding="utf-8").replace("south = 30.1", "south = 29.5")
    (tmp_path / "wide.toml").write_text(wide, encoding="utf-8")
    said = CliRunner().invoke(app, ["check", "--config", str(tmp_path / "wide.toml")]).output
    assert f"the model remembers {MOST_CELLS} of these cells. Make participation.geojson" in said


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
    done = CliRunner().invoke(app, [*command, str(secret), "--config", str(BUS_FLEET)])
    assert done.exit_code == 2
    assert f"run: chmod 600 {secret}" in " ".join(done.stderr.split())
    assert "0123" not in done.output
