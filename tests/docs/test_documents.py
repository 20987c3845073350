"""What the documents say is tried: every command runs, every link leads somewhere, the site builds and loads
nothing."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer

from bench.__main__ import BENCHMARKS
from bench.__main__ import app as benchmarks
from stream.cli import app
from stream.local.kafka import REPO_ROOT
from stream.local.server import free_port
from tests.docs.desk import Desk, small_desk
from tests.docs.pages import DIRECTIVES, Block, blocks, escaping, pages, spoken

ELSEWHERE_ONLY = {"a container engine", "a service manager", "this is that run"}
"""Reasons for which a command of the documents is not run by the tests."""
IN_ORDER = ("", "exit", "background")
"""Directives of blocks that are run one after the other, in one folder."""
BLOCKS = {page: blocks(page) for page in pages()}
EVERY_BLOCK = [block for page_blocks in BLOCKS.values() for block in page_blocks]
PAGES = [page for page, page_blocks in BLOCKS.items() if any(block.directive in IN_ORDER for block in page_blocks)]
SMALL = [block for block in EVERY_BLOCK if block.directive == "small"]


def names(page: Path) -> str:
    return str(page.relative_to(REPO_ROOT))


def test_documents_have_no_more_words_than_a_reader_needs():
    few = {"README.md": 900, "docs/dashboard.md": 2_000, "docs/known-limits.md": 2_000, "docs/privacy.md": 3_100}
    for path, most in ({"docs": 45_000} | few).items():
        words = [len(page.read_text(encoding="utf-8").split()) for page in BLOCKS if names(page).startswith(path)]
        assert 0 < sum(words) <= most, path


@pytest.mark.nightly
@pytest.mark.parametrize("block", SMALL, ids=str)
def test_every_measurement_of_the_documents_runs_on_made_up_recordings(block, hexveil, tmp_path):
    small_desk(tmp_path, hexveil).run(block)


@pytest.mark.parametrize("page", PAGES, ids=names)
@pytest.mark.timeout(600)
def test_every_command_of_the_page_does_what_the_page_says(
    page, hexveil, kafka, redis, redis_url, topic_name, tmp_path
):
    public, operator = free_port(), free_port()
    addresses = {"127[.]0[.]0[.]1:9092": kafka, "127[.]0[.]0[.]1:8080": f"127.0.0.1:{public}"}
    addresses["127[.]0[.]0[.]1:6066"] = f"127.0.0.1:{operator}"
    few = {r"--vehicles \d+": "--vehicles 20", r"--trials \d+": "--trials 1", r"(--sweep \w+=)[\d.,]+,": r"\1"}
    environment = {
        **dict.fromkeys(("HEXVEIL_FEED__NAME", "HEXVEIL_FEED__TOPIC", "HEXVEIL_KAFKA__GROUP"), topic_name),
        "HEXVEIL_KAFKA__BOOTSTRAP": kafka,
        "HEXVEIL_REDIS__URL": redis_url,
        "HEXVEIL_PUBLIC__PORT": str(public),
        "HEXVEIL_OPERATOR__PORT": str(operator),
        "HEXVEIL_WINDOW__IDLE_TIMEOUT": "2s",
    }
    desk = Desk(tmp_path, hexveil, environment, addresses | few)
    with ExitStack() as stack:
        for block in BLOCKS[page]:
            if block.directive == "background":
                desk.leave_running(block, stack)
            elif block.directive in IN_ORDER:
                desk.run(block)


def test_a_block_that_is_not_run_here_names_the_tests_that_run_it_or_one_of_three_reasons():
    for block in EVERY_BLOCK:
        assert block.directive in DIRECTIVES, f"{block}: no way to test is called {block.how!r}"
        if block.directive == "not":
            assert block.rest.removeprefix("here, ") in ELSEWHERE_ONLY, f"{block}: {block.how}"
        if block.directive == "elsewhere":
            assert block.rest, f"{block}: elsewhere, but where?"
            run: set[str] = set()
            for place in block.rest.split():
                file, _, test = place.partition("::")
                if file.endswith(".md"):
                    run |= {
                        path for page in BLOCKS[REPO_ROOT / file] if page.directive in IN_ORDER for path in used(page)
                    }
                else:
                    assert f"def {test}(" in (REPO_ROOT / file).read_text(encoding="utf-8"), f"{block}: no {place}"
            if run:
                assert used(block) <= run, f"{block}: {used(block) - run} are not run on those pages"


def test_no_command_of_the_documents_escapes_these_tests():
    escaped = {names(page): escaping(page.read_text(encoding="utf-8")) for page in BLOCKS}
    assert {page: lines for page, lines in escaped.items() if lines} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "```console\n$ hexveil check\n```\n",
        "```\nmake demo\n```\n",
        "```bash\nls\n```\n",
        "~~~sh\ndocker ps\n~~~\n",
        "Type\n\n    HEXVEIL_DATA=x python -m bench\n",
        "Type\n\n$ .venv/bin/hexveil check\n",
        "<!-- test: small -->\n\n```sh\nhexveil check\n```\n",
        "<pre>hexveil check</pre>\n",
    ],
)
def test_a_planted_command_in_another_dress_is_caught(planted):
    assert len(escaping("# Page\n\n```sh\nhexveil check\n```\n\n" + planted)) >= 1
    assert escaping("# Page\n\n```sh\nhexveil check\n```\n\nMake a file:\n\n```toml\nmake = 1\n```\n") == []


def used(block: Block) -> set[str]:
    """The commands of ``hexveil`` that a block runs, like "ledger show"."""
    lines = block.text.replace("\\\n", " ").splitlines() if block.language == "sh" else []
    commands = (re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line) for line in lines)
    return {resolved(command)[0] for command in commands if command.startswith("hexveil ")}


def resolved(line: str) -> tuple[str, set[str]]:
    """(Command, words that are neither a command nor an option of it) of a line of hexveil or ``python -m bench``."""
    words = shlex.split(re.split(r" [|>&;]|$", line)[0], comments=True)
    benchmark = words[:3] == ["python", "-m", "bench"]
    words = words[3:] if benchmark else words[1:]
    command, path = typer.main.get_command(benchmarks if benchmark else app), []
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        path.append(words.pop(0))
        command = command.get_command(None, path[-1])
        if command is None:
            return " ".join(path), {path[-1]}
    known = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts} | {
        "--help"
    }
    wrong = {word for word in words if re.match(r"-{1,2}[a-z]", word) and word.partition("=")[0] not in known}
    return " ".join(path), wrong


def test_every_command_and_option_that_the_page_names_exists():
    for page in BLOCKS:
        said = [re.sub(r"^([A-Z_]+=\S+ )+", "", line.strip()) for line in spoken(page)]
        wrong = {line: resolved(line)[1] for line in said if line.startswith(("hexveil ", "python -m bench "))}
        assert {line: words for line, words in wrong.items() if words} == {}
    assert resolved("hexveil ledger show --config x | head --lines 3") == ("ledger show", set())
    assert resolved("hexveil ledger shew") == ("ledger shew", {"shew"})
    assert resolved("python -m bench sse --fast --json  # --not-this") == ("", {"--fast"})


def test_make_knows_every_target_that_the_documents_name():
    targets = {match[1] for page in BLOCKS for line in spoken(page) if (match := re.match(r"make ([a-z-]+)", line))}
    rules = re.findall(r"^([a-z -]+):", (REPO_ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {target for rule in rules for target in rule.split()}
    assert {"demo", "test"} <= targets
    assert targets <= known, targets - known


@pytest.mark.parametrize(
    ("given", "options"), [("SECONDS=120 FLEET=300 KAFKA=1", "--seconds 120 --fleet 300 --kafka"), ("", "")]
)
def test_make_demo_hands_over_what_it_is_given(given, options):
    (line,) = recipe("demo", *given.split())
    assert " ".join(line.split()) == f"hexveil demo {options}".strip()
    assert resolved(line) == ("demo", set())


def test_make_bench_runs_every_benchmark_or_those_that_are_named():
    assert recipe("bench") == [f"python -m bench $name --json; done in {' '.join(BENCHMARKS)}"]
    assert recipe("bench", "BENCHMARKS=sse ingest") == ["python -m bench $name --json; done in sse ingest"]


def recipe(*target: str) -> list[str]:
    """Commands of hexveil that make would run, each with the list of the loop it stands in."""
    output = subprocess.run(["make", "-n", *target], cwd=REPO_ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line for line in output.splitlines() if re.search("bin/(hexveil|python -m bench)", line)]
    loops = [re.search(r"for name in (.*?);", line) for line in lines]
    commands = [line[line.rindex("bin/") + 4 :].strip() for line in lines]
    return [command + (f" in {loop[1]}" if loop else "") for command, loop in zip(commands, loops, strict=True)]


def test_every_file_that_the_documents_name_is_there():
    named = re.compile(r"`((?:bench|config|docs|dpcore|examples|research|stream|tests)/[^`\s:]*)")
    references = {(names(page), path) for page in BLOCKS for path in named.findall(page.read_text(encoding="utf-8"))}
    assert len(references) > 40
    assert [missing for missing in sorted(references) if not any(REPO_ROOT.glob(missing[1].rstrip("/")))] == []


def test_every_relative_link_of_readme_and_documents_leads_to_a_file():
    broken = []
    for page in BLOCKS:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("#"):
                continue
            if not (page.parent / target.partition("#")[0]).exists():
                broken.append(f"{names(page)}: {target}")
    assert not broken


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) > 10
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["'](?:https?:)?//|<link[^>]+rel=["'](?:stylesheet|preload|icon)["'][^>]+href=["'](?:https?:)?//|<link[^>]+href=["'](?:https?:)?//[^>]+rel=["'](?:stylesheet|preload)"""
    )
    outside = [str(page) for page in built if loaded.search(page.read_text(encoding="utf-8"))]
    assert not outside
