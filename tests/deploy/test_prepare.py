"""One message names everything that a machine lacks for `make demo` and `make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stream.local import REPO_ROOT

TOOLS = ("sh", "id", "uname", "grep", "date", "cat", "dirname")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with Python and a shell, without a package manager of Debian."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(sys.executable)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


def prepare(purpose: str, environment: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script from a folder without the jars of Kafka."""
    folder = Path(environment["HOME"]) / "clone"
    (folder / ".ci").mkdir(parents=True, exist_ok=True)
    for name in ("prepare", "step"):
        shutil.copy(REPO_ROOT / ".ci" / name, folder / ".ci" / name)
    command = [str(folder / ".ci" / "prepare"), purpose]
    return subprocess.run(command, cwd=folder, env=environment | more, capture_output=True, text=True)


def lines(done: subprocess.CompletedProcess[str]) -> dict[str, set[str]]:
    """Packages by system, from the one message."""
    assert done.stderr.count("What is missing") == 1, done.stderr
    words = {line.split(":")[0].strip(): line.split() for line in done.stderr.splitlines()}
    return {
        system: set(words[system][4:] if system == "Debian" else words[system][3:]) for system in ("Debian", "Homebrew")
    }


def test_all_that_the_tests_need_is_named_for_debian_and_homebrew_and_nothing_begins(bare: dict[str, str]) -> None:
    done = prepare("test", bare)
    assert done.returncode == 1
    named = lines(done)
    both = {"maven", "curl", "prometheus", "kcat"}
    assert both | {"default-jre-headless", "redis-server", "chromium-headless-shell", "gdal-bin"} <= named["Debian"]
    assert both | {"openjdk", "redis", "chromium", "gdal"} <= named["Homebrew"]


def test_a_demo_names_java_and_maven_and_runs_without_them(bare: dict[str, str]) -> None:
    done = prepare("demo", bare)
    assert done.returncode == 0
    assert lines(done) == {"Debian": {"default-jre-headless", "maven"}, "Homebrew": {"openjdk", "maven"}}
    assert "The demo runs without Kafka." in done.stderr


def test_a_demo_that_insists_on_kafka_stops_there(bare: dict[str, str]) -> None:
    done = prepare("demo", bare, KAFKA="1")
    assert done.returncode == 1
    assert lines(done)["Debian"] == {"default-jre-headless", "maven"}


def test_a_python_that_is_too_old_is_told_with_the_way_to_name_another(bare: dict[str, str], tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac\n')
    old.chmod(0o755)
    done = prepare("python", bare, PYTHON=str(old))
    assert done.returncode == 1
    assert "Python 3.9.2; Hexveil needs 3.11.2 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_machine_that_has_everything_hears_nothing(bare: dict[str, str]) -> None:
    commands = ("java", "mvn", "curl", "redis-server", "promtool", "kcat", "ogr2ogr")
    missing = [name for name in commands if not shutil.which(name)]
    if not shutil.which("chromium-headless-shell") and not shutil.which("chromium"):
        missing.append("chromium")
    if not shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"):
        missing.append("mosquitto")
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    done = prepare("test", dict(os.environ) | {"HOME": bare["HOME"], "PYTHON": sys.executable})
    assert (done.returncode, done.stderr) == (0, "")
