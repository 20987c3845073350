"""The source stays legible: what ruff has no rule for. Lengths of functions and private names are ruff's, in
``pyproject.toml``. What people look for at the top of a repository is there, true and well formed. Docstrings name the
tests that prove them: every test that is named exists."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

import dpcore
from stream.local.kafka import REPO_ROOT
from tests.packaging.release import SECTION, problems

MOST_LINES_OF_A_FILE = 460
"""Limit of a file's lines: a longer one has two subjects."""
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow", "today"}
"""Functions that read a clock."""
PRIVATE_BY_NAME = re.compile(r"""\b(?:\w+attr|object)\([^()\n]*["'](?:\w+\.)*_(?!labelnames)[a-z]\w*["']""")
"""An attribute with a leading underscore that is reached by its name in a string."""
PRIVATE_IMPORT = re.compile(r"^from (?:stream|dpcore|bench|research)\b.* import .*\b_[a-z]", re.MULTILINE)
EMPTY = "(?:found|held|told|some)"
EMPTY_NAME = re.compile(
    rf"(?m)^ +(?:\w+, )*{EMPTY}\b(?:, \w+)* = |\bfor (?:\w+, )*{EMPTY}\b(?:, \w+)* in |\bas {EMPTY}[:,]"
    rf"|\({EMPTY} :=|lambda (?:\w+, )*{EMPTY}\b|def \w+\((?:.*, )?{EMPTY}[:,)=]"
)
"""A local, or an argument, whose name does not say what it holds."""
FILES = sorted(path for room in ("stream", "dpcore", "bench", "research") for path in (REPO_ROOT / room).rglob("*.py"))
TESTS = sorted((REPO_ROOT / "tests").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_file_has_one_subject():
    sizes = {path.relative_to(REPO_ROOT): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert not {path: size for path, size in sizes.items() if size > MOST_LINES_OF_A_FILE}


def bound_twice(text: str) -> set[str]:
    """Names that a module binds more than once."""
    names = re.findall(r"^(?:(?:async )?def |class )(\w+)", text, re.MULTILINE)
    names += re.findall(r"^(_?[A-Z]\w*)(?::[^=\n]*)? = ", text, re.MULTILINE)
    return {name for name in names if names.count(name) > 1}


def test_no_module_binds_a_name_twice():
    """Two merged modules once shared the name of a constant, and the first was judged by the second's number."""
    twice = {path.relative_to(REPO_ROOT): bound_twice(path.read_text(encoding="utf-8")) for path in FILES}
    assert not {path: names for path, names in twice.items() if names}
    assert bound_twice("A = 1\nB = 2\ndef f(): pass\nB: int = 3") == {"B"}


def test_no_local_has_a_name_that_says_nothing():
    texts = {path.relative_to(REPO_ROOT): path.read_text(encoding="utf-8") for path in FILES + TESTS}
    assert not {path: empty[0] for path, text in texts.items() if (empty := EMPTY_NAME.search(text))}
    bound = "    a, X = 1|for X in g()|except E as X:|(X := 1)|lambda X: 1|def f(a, X):".replace("X", "held").split("|")
    assert all(map(EMPTY_NAME.search, bound))
    assert not EMPTY_NAME.search("class A:\n    told: str\n\n    def held(self):\n        return self.told\n")


def test_every_error_that_the_command_line_names_by_text_is_defined():
    """It imports no class of them, so that it starts sooner; a name without a class would have no exit code."""
    defined = {name for path in FILES for name in re.findall(r"(?m)^class (\w+)\(", path.read_text(encoding="utf-8"))}
    named = set(re.findall(r'"(\w+Error)"', (REPO_ROOT / "stream" / "cli" / "__init__.py").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert named <= defined, named - defined


def test_no_test_imports_from_another_test_or_a_private_name_or_names_a_private_attribute_in_a_string():
    """What several tests use is in ``tests/support``, or beside them in a module without tests."""
    imported = re.compile(r"^from tests\.[\w.]*\btest_", re.MULTILINE)
    texts = {path.relative_to(REPO_ROOT): path.read_text(encoding="utf-8") for path in TESTS}
    wrong = (imported, PRIVATE_BY_NAME, PRIVATE_IMPORT)
    assert not [path for path, text in texts.items() if any(pattern.search(text) for pattern in wrong)]
    assert imported.search("\nfrom tests.stream.app.test_worker import charges")
    assert PRIVATE_IMPORT.search("\nfrom dpcore.noise import " + "Noise, _draw")
    assert PRIVATE_BY_NAME.search("monkeypatch.set" + "attr(closing, '_draw', 1)")
    assert PRIVATE_BY_NAME.search("mock.patch.obj" + "ect(closing, '_draw')")


def clock_readings(node: ast.AST) -> Iterator[str]:
    """Readings of a clock that happen while a module is imported: outside of functions, or as a default of an
    argument."""
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            parts = [part for part in ast.iter_child_nodes(node) if part not in body]
        case ast.Lambda(args=arguments):
            parts = [arguments]
        case _:
            parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOCKS:
        yield f"{node.lineno}: {ast.unparse(node)}"
    for part in parts:
        yield from clock_readings(part)


def test_no_test_reads_the_clock_while_it_is_collected():
    """It may run a quarter of an hour later, when an event of that moment is no longer in time."""
    reading = re.compile(rf"\b(?:{'|'.join(CLOCKS)})\(")  # most files need no parsing
    paths = [path for path in TESTS if reading.search(path.read_text(encoding="utf-8"))]
    assert not [f"{path.relative_to(REPO_ROOT)}:{each}" for path in paths for each in clock_readings(tree_of(path))]
    read = "class A:\n    now = [datetime.now(UTC)]\n\n@mark(date.today())\ndef f(now=time_ns()):\n    pass"
    assert len(list(clock_readings(ast.parse(read)))) == 3
    assert not list(
        clock_readings(ast.parse("def f():\n    now = time.time()\n\nclock, late = time.time, lambda: time.time()"))
    )


CHANGELOG = (REPO_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
GITHUB = REPO_ROOT / ".github"


def test_the_licence_is_apache_2_and_both_distributions_say_so():
    text = (REPO_ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
    for folder in ("", "dpcore"):
        project = tomllib.loads((REPO_ROOT / folder / "pyproject.toml").read_text())["project"]
        assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
        assert project["dynamic"] == ["version"]
        assert (REPO_ROOT / folder / "LICENSE").read_text(encoding="utf-8") == text


def test_the_mathematics_alone_requires_what_the_service_requires_of_it():
    alone, whole = (
        tomllib.loads((REPO_ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("dpcore", "")
    )
    assert set(alone["dependencies"]) <= set(whole["dependencies"])
    assert alone["requires-python"] == whole["requires-python"]


def test_the_changelog_is_newest_first_and_knows_only_the_kinds_of_keep_a_changelog():
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
def test_a_release_needs_its_tag_a_clean_tree_and_its_section(tags, changes, section, said):
    reasons = problems("1.2.0", tags, changes, section)
    assert len(reasons) == len(said)
    assert all(part in reason for part, reason in zip(said, reasons, strict=True))


def test_the_version_is_a_semantic_one_and_stands_in_one_place():
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
    for page in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml", REPO_ROOT / "SECURITY.md"):
        assert "hexveil --version" in page.read_text(encoding="utf-8"), "a report names the version"


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_what_the_repository_host_reads_is_well_formed(schema, pattern):
    files = [str(path) for path in sorted(GITHUB.glob(pattern))]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_before_a_commit_are_local_and_those_of_make_lint_and_the_host_runs_the_commands_of_every_machine():
    (local,) = yaml.safe_load((REPO_ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    lint = (REPO_ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    hooks = {hook["entry"].replace(" --force-exclude", "") for hook in local["hooks"]}
    assert hooks == {line.strip().removesuffix(" .").replace("$(BIN)", ".venv/bin") for line in lint}
    (workflow,) = GITHUB.glob("workflows/*.yml")
    jobs = {name: job["steps"] for name, job in yaml.safe_load(workflow.read_text())["jobs"].items()}
    commands = {"test": ".ci/run", "ratios": "make bench-quick", "nightly": "make test-all"}
    assert {name: steps[-1]["run"] for name, steps in jobs.items()} == commands
    used = [step["uses"] for steps in jobs.values() for step in steps if "uses" in step]
    assert [name.partition("@")[0] for name in used] == ["actions/checkout"] * len(jobs)


NAMED = re.compile(r"tests/[\w/]+\.py(?:::(\w+))?")
MODULES = sorted(path for room in ("dpcore", "stream") for path in (REPO_ROOT / room).rglob("*.py"))
OF_FILES = ("mean", "variance", "distribution", "gaussian_allocation", "budget", "participation", "residual")
OF_ROOMS = ("single_cell/mean", "single_cell/range_mean", "spatial/hierarchy", "spatial/e2epriv", "spatial/euler")
RELEASED = [f"dpcore/{name}.py" for name in (*OF_FILES, *OF_ROOMS, "spatial/grids", "spatial/htf", "spatial/trees")]
"""The modules of every number that leaves: each states what is to be proved, and names its tests."""


def missing(text: str, root: Path = REPO_ROOT) -> list[str]:
    """Paths of tests, and ``path::name`` of test functions, that ``text`` names and ``root`` lacks."""
    absent = []
    for match in NAMED.finditer(text):
        file, function = root / match[0].split("::")[0], match[1]
        if not file.is_file() or (function and f"def {function}(" not in file.read_text()):
            absent.append(match[0])
    return absent


def test_every_test_that_a_module_names_exists():
    absent = {module: missing(module.read_text()) for module in MODULES}
    assert not {module: names for module, names in absent.items() if names}
    assert missing("proved in tests/dpcore/test_nothing.py") == ["tests/dpcore/test_nothing.py"]
    this = "tests/packaging/test_legible.py"
    assert missing(f"{this}::test_of_nothing") == [f"{this}::test_of_nothing"]
    assert not missing(f"{this}::test_every_test_that_a_module_names_exists")


def test_every_released_number_says_what_is_to_be_proved_and_which_test_tries_it():
    for module in RELEASED:
        docstring = (REPO_ROOT / module).read_text().split('"""')[1]
        assert "To be proved" in docstring, module
        assert "Proof" in docstring, module
        assert NAMED.search(docstring), f"{module}: no test is named"


def unknown(page: str) -> set[str]:
    """Tests that a page names in backticks and no file of the tests defines."""
    defined = "".join(path.read_text() for path in (REPO_ROOT / "tests").rglob("*.py"))
    return {name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in defined}


def test_every_mistake_in_a_source_names_a_test_that_exists():
    page = (REPO_ROOT / "research" / "errata.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(("| [", "| talk"))]
    assert len(rows) > 20
    assert not [row for row in rows if "test_" not in row]
    assert not unknown(page)
    assert unknown("`test_of_nothing`") == {"test_of_nothing"}
