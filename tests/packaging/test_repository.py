"""What people look for at the top of a repository is there, true and well formed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpcore
from stream.local import REPO_ROOT
from tests.packaging.release import SECTION, problems

CHANGELOG = (REPO_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
GITHUB = REPO_ROOT / ".github"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_licence_is_apache_2_and_both_distributions_say_so() -> None:
    text = (REPO_ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
    for folder in ("", "dpcore"):
        project = tomllib.loads((REPO_ROOT / folder / "pyproject.toml").read_text())["project"]
        assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
        assert project["dynamic"] == ["version"]
        assert (REPO_ROOT / folder / "LICENSE").read_text(encoding="utf-8") == text


def test_the_mathematics_alone_requires_what_the_service_requires_of_it() -> None:
    alone, whole = (
        tomllib.loads((REPO_ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("dpcore", "")
    )
    assert set(alone["dependencies"]) <= set(whole["dependencies"])
    assert alone["requires-python"] == whole["requires-python"]


def test_the_changelog_is_newest_first_and_knows_only_the_kinds_of_keep_a_changelog() -> None:
    sections = list(SECTION.finditer(CHANGELOG))
    assert sections[0]["name"] == "Unreleased"
    assert len(sections) == len(re.findall(r"(?m)^## ", CHANGELOG))
    versions = [tuple(map(int, section["name"].split("."))) for section in sections[1:]]
    assert versions == sorted(versions, reverse=True)
    assert set(re.findall(r"(?m)^### (.*)$", CHANGELOG)) <= KINDS


@pytest.mark.parametrize(
    ("tags", "changes", "section", "said"),
    [
        ([], " M README.md", "", []),
        (["v1.2.0"], "", "## [1.2.0] - 2026-12-01\n", []),
        (["v1.2.1"], "", "## [1.2.0] - 2026-12-01\n", ["the tag is v1.2.1"]),
        (["v1.2.0"], " M README.md", "## [1.2.0] - 2026-12-01\n", ["has changes"]),
        (["v1.2.0"], "", "## [Unreleased]\n## [1.2.0]\n", ["no section '## [1.2.0] - DATE'"]),
    ],
)
def test_a_release_needs_its_tag_a_clean_tree_and_its_section(
    tags: list[str], changes: str, section: str, said: list[str]
) -> None:
    reasons = problems("1.2.0", tags, changes, section)
    assert len(reasons) == len(said)
    assert all(part in reason for part, reason in zip(said, reasons, strict=True))


def test_the_version_is_a_semantic_one_and_stands_in_one_place() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", dpcore.__version__)
    tracked = subprocess.run(
        ["git", "grep", "-lF", f'"{dpcore.__version__}"', "--", "*.py", "*.toml", "Dockerfile"],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert tracked in (["dpcore/__init__.py"], [])  # none: no clone, a source archive
    for file, tag in (("docker-compose.yml", "image: hexveil:"), ("deploy/kubernetes/kustomization.yaml", "newTag: ")):
        named = re.findall(rf"{tag}([\w.]+)", (REPO_ROOT / file).read_text(encoding="utf-8"))
        assert set(named) == {dpcore.__version__}, file


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_what_the_repository_host_reads_is_well_formed(schema: str, pattern: str) -> None:
    files = [str(path) for path in sorted(GITHUB.glob(pattern))]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_commands_of_every_machine() -> None:
    (workflow,) = GITHUB.glob("workflows/*.yml")
    jobs = read_yaml(workflow)["jobs"]
    assert jobs.keys() == {"test", "ratios", "nightly"}
    for job in jobs.values():
        assert set(job["steps"][0]) == {"uses"}
        assert job["steps"][0]["uses"].startswith("actions/checkout@")
    assert jobs["test"]["steps"][1:] == [{"run": ".ci/run"}]
    assert jobs["ratios"]["steps"][-1] == {"run": "make bench-quick"}
    assert jobs["nightly"]["steps"][-1] == {"run": "make test-all"}


def test_the_hooks_before_a_commit_are_local_and_are_those_of_make_lint() -> None:
    (local,) = read_yaml(REPO_ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert all(hook["language"] == "system" for hook in local["hooks"])
    wanted = {hook["entry"].replace(" --force-exclude", "") for hook in local["hooks"]}
    lint = (REPO_ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    run = {line.strip().replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in lint.splitlines()[1:]}
    assert wanted == run


def test_reports_name_a_command_that_tells_the_version() -> None:
    assert "hexveil --version" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "hexveil --version" in (REPO_ROOT / "SECURITY.md").read_text()
