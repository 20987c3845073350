"""``pip install hexveil-*.whl`` in an empty folder, with no clone: every command works, or says what it lacks."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dpcore import __version__
from stream.cli import SUBJECTS
from stream.local.kafka import kafka_jars
from stream.local.server import free_port
from tests.packaging.fresh import clean

pytestmark = pytest.mark.nightly


class Desk:
    """An empty folder, home included, whose only tools are those of the fresh environment and of the system."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder, self.commands = folder, commands
        path = f"{commands}:/usr/local/bin:/usr/bin:/bin"
        self.environment = clean() | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PATH": path}

    def run(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """``hexveil`` with these arguments, which must end with ``code`` and without a traceback."""
        done = subprocess.run(
            ["hexveil", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            executable=self.commands / "hexveil",
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == code, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr
        return done

    @contextmanager
    def running(self, *arguments: str, **environment: str) -> Iterator[Path]:
        """``hexveil`` with these arguments while the block runs; it must still be there at its end and stop on
        SIGTERM."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("w") as said:
            process = subprocess.Popen(
                [self.commands / "hexveil", *arguments],
                cwd=self.folder,
                env=self.environment | environment,
                stdout=said,
                stderr=said,
            )
        try:
            yield log
            assert process.poll() is None, log.read_text()[-3000:]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def desk(service: Path, tmp_path: Path) -> Desk:
    return Desk(tmp_path, service)


def test_the_version_help_and_completion_come_with_the_command(desk):
    assert desk.run("--version").stdout.startswith(f"hexveil {__version__} ")
    for module in ("hexveil", "stream"):
        command = [desk.commands / "python", "-m", module, "--version"]
        done = subprocess.run(command, cwd=desk.folder, env=desk.environment, capture_output=True, text=True)
        assert done.stdout.startswith(f"hexveil {__version__} "), done.stderr
    assert "demo" in desk.run("--help").stdout
    typed = {"_HEXVEIL_COMPLETE": "complete_bash", "COMP_WORDS": "hexveil do", "COMP_CWORD": "1"}
    assert desk.run("--help", **typed).stdout.split() == ["doctor"]
    assert "_HEXVEIL_COMPLETE" in desk.run("--help", _HEXVEIL_COMPLETE="source_bash").stdout


def test_a_recording_becomes_releases_with_the_shipped_template(desk):
    said = desk.run("check").stderr
    assert "the template of relation 'values'" in said
    start = ("--start", "2026-03-02T12:00:00Z", "--duration", "1h", "--pace", "max")
    desk.run("simulate", "--vehicles", "20", *start, "--out", "day.ndjson.gz")
    assert json.loads(desk.run("inspect", "day.ndjson.gz", "--json").stdout)["vehicles"] == 20
    releases = desk.run("replay", "day.ndjson.gz", "--offline").stdout
    (desk.folder / "releases.ndjson").write_text(releases)
    assert json.loads(releases.splitlines()[-1])["topic"] == "hexveil.window.v1"
    assert (desk.folder / "var" / "user.key").is_file()
    desk.run("verify", "releases.ndjson")
    desk.run("key", "signing", "signing.key")
    assert json.loads(desk.run("evaluate", "day.ndjson.gz", "--trials", "1", "--json").stdout)["private"] is False
    grid = ("--resolutions", "5", "--slots", "1h", "--budget", "500", "--draws", "1")
    want = ("--want", "±20 km/h for 50 % of events")
    assert json.loads(desk.run("tune", "day.ndjson.gz", *want, *grid, "--json").stdout)["private"] is False


def test_init_and_a_file_of_ones_own(desk):
    desk.run("init", "--relation", "participation", "--vehicles", "300")
    done = desk.run("check")
    assert "hexveil.toml: sound" in done.stdout
    assert "found here" in done.stderr
    histogram = 'HEXVEIL_HISTOGRAM={"mechanisms":["ug"],"epsilon":0.5}'.partition("=")
    span = ("--from", "2026-03-02T04:00", "--until", "2026-03-02T04:15")
    (desk.folder / "none.ndjson").write_text("")
    releases = desk.run("replay", "none.ndjson", "--offline", *span, **{histogram[0]: histogram[2]}).stdout
    (desk.folder / "releases.ndjson").write_text(releases)
    asked = desk.run("query", "releases.ndjson", "--bbox", "-97.8,30.2,-97.7,30.3", "--json").stdout
    assert len(json.loads(asked)["answers"]) == 1


def test_schemas_are_in_the_wheel(desk):
    desk.run("schema", "list")
    desk.run("schema", "export", "schemas")
    assert (desk.folder / "schemas" / "asyncapi.json").is_file()


def test_a_worker_and_a_dashboard_run_from_the_wheel(desk, kafka, redis_url, topic_name):
    public, operator = free_port(), free_port()
    desk.environment |= {
        **dict.fromkeys(("HEXVEIL_FEED__NAME", "HEXVEIL_FEED__TOPIC", "HEXVEIL_KAFKA__GROUP"), topic_name),
        "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
        "HEXVEIL_REDIS__URL": redis_url,
        "HEXVEIL_PUBLIC__PORT": str(public),
        "HEXVEIL_OPERATOR__PORT": str(operator),
        "HEXVEIL_WINDOW__IDLE_TIMEOUT": "2s",
        "HEXVEIL_WINDOW__LATENESS": "event-time",  # a simulated hour that is over
    }
    desk.run("topics", "create")
    desk.run("doctor")
    desk.run("ledger", "adopt", "--since", "2026-03-02", "--no-other-ledger")
    with desk.running("worker") as worker_log, desk.running("serve") as serve_log:
        start = ("--start", "2026-03-02T12:00:00Z", "--duration", "1h", "--pace", "max")
        desk.run("simulate", "--vehicles", "20", *start)
        released(f"http://127.0.0.1:{public}/api/v1/hexagons", worker_log, serve_log)
        with urllib.request.urlopen(f"http://127.0.0.1:{public}/", timeout=10) as page:
            assert b"<html" in page.read()
        assert "users" in desk.run("ledger", "show").stdout


def released(address: str, *logs: Path) -> None:
    """Wait until a window's cells can be read at ``address``."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
            if json.load(answer)["hexagons"]:
                return
        time.sleep(0.5)
    raise AssertionError("\n".join(log.read_text()[-2000:] for log in logs))


def test_servers_that_are_not_there_are_named_with_a_remedy(desk):
    away = {"HEXVEIL_KAFKA__BOOTSTRAP": "127.0.0.1:9", "HEXVEIL_REDIS__URL": "redis://127.0.0.1:9/0"}
    assert "remedy:" in desk.run("doctor", code=3, **away).stdout
    assert "127.0.0.1:9" in desk.run("topics", "create", code=3, **away).stderr
    assert "127.0.0.1:9" in desk.run("ledger", "show", code=3, **away).stderr


def test_a_feed_that_wants_an_extra_names_it(desk):
    assert "pip install 'hexveil[gtfs]'" in desk.run("gtfs-rt", "snapshot.pb", code=2).stderr
    assert "pip install 'hexveil[mqtt]'" in desk.run("hfp", "mqtts://agency.example", code=2).stderr


def test_feeds_of_files_and_senders_name_what_is_missing(desk):
    assert "siri.xml is neither a file" in desk.run("siri-vm", "siri.xml", code=2).stderr
    assert "gtfs.zip: No such file" in desk.run("gtfs", "gtfs.zip", code=2).stderr
    assert "token.txt" in desk.run("push", "--token-file", "token.txt", code=2).stderr


@pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on PATH: what the demo needs of it is tried elsewhere"
)
def test_the_demo_wants_no_clone(desk):
    """The wheel contains the list of jars and all that a broker is started with. If Kafka is required and neither jars
    nor Maven exist, the demo says so. That the wheel's worker releases is tried above.
    """
    tools = desk.folder / "tools"
    tools.mkdir()
    java = shutil.which("java")
    assert java is not None
    (tools / "java").symlink_to(os.path.realpath(java))
    lacking = desk.run("demo", "--kafka", "--seconds", "2", code=3, PATH=str(tools)).stderr
    assert "Maven" in lacking
    assert "Without Kafka: hexveil demo --no-kafka" in lacking
    with desk.running("demo", "--kafka", HEXVEIL_KAFKA_JARS=str(kafka_jars())) as log:
        while "Dashboard: http://127.0.0.1:" not in log.read_text():
            time.sleep(0.1)
    assert not list(desk.folder.glob("**/*.key")), "the demo keeps its key in a folder that is gone with it"


def test_every_command_is_tried_above():
    tried = re.findall(r'desk\.(?:run|running)\("([\w-]+)"', Path(__file__).read_text(encoding="utf-8"))
    assert set(SUBJECTS) <= set(tried)
