"""Docstrings name the tests that prove them: every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"tests/[\w/]+\.py(?:::(\w+))?")
MODULES = sorted(path for room in ("dpcore", "stream") for path in (ROOT / room).rglob("*.py"))
RELEASED = (
    "dpcore/mean.py",
    "dpcore/variance.py",
    "dpcore/distribution.py",
    "dpcore/gaussian_allocation.py",
    "dpcore/budget.py",
    "dpcore/participation.py",
    "dpcore/residual.py",
    "dpcore/single_cell/mean.py",
    "dpcore/single_cell/range_mean.py",
    "dpcore/spatial/hierarchy.py",
    "dpcore/spatial/e2epriv.py",
    "dpcore/spatial/euler.py",
    "dpcore/spatial/grids.py",
    "dpcore/spatial/hierarchy.py",
    "dpcore/spatial/htf.py",
    "dpcore/spatial/trees.py",
    "dpcore/spatial/grids.py",
)
"""The modules of every number that leaves: each states what is to be proved, and names its tests."""


def missing(text: str, root: Path = ROOT) -> list[str]:
    """Paths of tests, and ``path::name`` of test functions, that ``text`` names and ``root`` lacks."""
    absent = []
    for match in NAMED.finditer(text):
        file, function = root / match[0].split("::")[0], match[1]
        if not file.is_file() or (function and f"def {function}(" not in file.read_text()):
            absent.append(match[0])
    return absent


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_module_names_exists(module: Path) -> None:
    assert not missing(module.read_text())


@pytest.mark.parametrize("module", RELEASED)
def test_every_released_number_says_what_is_to_be_proved_and_which_test_tries_it(module: str) -> None:
    docstring = (ROOT / module).read_text().split('"""')[1]
    assert "To be proved" in docstring
    assert "Proof" in docstring
    assert NAMED.search(docstring), "no test is named"


def test_a_name_without_a_test_is_noticed() -> None:
    assert missing("proved in tests/dpcore/test_nothing.py") == ["tests/dpcore/test_nothing.py"]
    this = "tests/dpcore/test_named_tests.py"
    assert missing(f"{this}::test_of_nothing") == [f"{this}::test_of_nothing"]
    assert not missing(f"{this}::test_a_name_without_a_test_is_noticed")


def unknown(page: str) -> set[str]:
    """Tests that a page names in backticks and no file of the tests defines."""
    defined = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return {name for name in re.findall(r"`(test_\w+)`", page) if f"def {name}(" not in defined}


def test_every_mistake_in_a_source_names_a_test_that_exists() -> None:
    page = (ROOT / "research" / "errata.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(("| [", "| talk"))]
    assert len(rows) > 20
    assert not [row for row in rows if "test_" not in row]
    assert not unknown(page)
    assert unknown("`test_of_nothing`") == {"test_of_nothing"}
