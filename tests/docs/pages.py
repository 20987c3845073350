"""The commands of the documents: fenced ``sh`` and ``python`` blocks, and how each is to be tried.

A comment right above a block says what else than "run it, expect exit 0" holds: ``<!-- test: exit 1 -->``,
``<!-- test: background -->`` (started, left running for the blocks below, ended with the page), ``<!-- test: small -->`` (run as it
is, on a recording of a few made-up vehicles under the name the page uses), ``<!-- test: long -->`` (run only with
HEXVEIL_LONG_DOCS=1, else every hexveil command is checked against its help), ``<!-- test: elsewhere FILE -->`` (that
file of the tests runs it) and ``<!-- test: not here, REASON -->``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stream.local import REPO_ROOT

_BLOCK = re.compile(
    r"(?:<!-- test: (?P<how>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>sh|python)\b[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; ``line`` is where it begins."""

    page: str
    line: int
    language: str
    how: str
    text: str


def pages() -> list[Path]:
    """README and every document except decisions, which have no commands."""
    return [REPO_ROOT / "README.md", *sorted((REPO_ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Runnable blocks of one page, in order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(REPO_ROOT))
    return [
        Block(
            name,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            match["how"] or "",
            re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
        )
        for match in _BLOCK.finditer(text)
    ]
