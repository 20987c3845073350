"""The commands of the documents: fenced ``sh`` and ``python`` blocks, and how each is tried.

A block is run in the order of its page, in one folder, and must end with 0. A comment right above it says otherwise:

- ``<!-- test: exit 1 -->``: it ends with that code;
- ``<!-- test: background -->``: it is started, left running for the blocks below, and ended with the page;
- ``<!-- test: small -->``: it is run by itself, on made-up recordings under the names the page uses, benchmarks at
  their quick size;
- ``<!-- test: elsewhere WHERE … -->``: tests (``tests/file.py::test_name``) run it, or pages whose own blocks run the
  same commands;
- ``<!-- test: not here, REASON -->``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stream.local.kafka import REPO_ROOT

_BLOCK = re.compile(
    r"(?:<!-- test: (?P<how>[^\n]*?) -->\n)?^(?P<indent> "
    r"*)```(?P<language>sh|python)\b[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(
    r"^\s*(?:[$>%] )?(?:sudo )?(?:[A-Z_]+=\S+ )*"
    r"(?:\S*/)?(?:hexveil|make|python3?|pip3?|docker|podman|curl|kcat|redis-cli|npm|npx|node|git|systemctl|java|bash|sh|export|cd) (?!=)"  # noqa: E501
)
_DATA = ("js", "json", "toml", "yaml", "")
"""Fences that hold no commands."""
DIRECTIVES = ("", "exit", "background", "small", "elsewhere", "not")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. ``line``: where it begins; ``how``: what the page says about testing it."""

    page: str
    line: int
    language: str
    how: str
    text: str

    @property
    def directive(self) -> str:
        return self.how.partition(" ")[0]

    @property
    def rest(self) -> str:
        return self.how.partition(" ")[2]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """What lies at the top, and every document."""
    top = [*sorted(REPO_ROOT.glob("*.md")), REPO_ROOT / "dpcore" / "README.md"]
    return [*top, *sorted((REPO_ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Runnable blocks of one page, in order."""
    return blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(REPO_ROOT)))


def blocks_of(text: str, name: str) -> list[Block]:
    """Runnable blocks of a page's text, in order."""
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


def escaping(text: str) -> list[str]:
    """What would not be tried though it looks like commands: lines in other fences, indented or after a prompt; lost
    directives."""
    page_blocks = blocks_of(text, "")
    rest = _BLOCK.sub("", text)
    fence = None
    lines = []
    for line in rest.splitlines():
        if opening := re.match(r" *(`{3,}|~{3,}) *(\S*)", line):
            fence = None if fence is not None else opening[2]
            if fence is not None and fence not in _DATA:
                lines.append(line)
        elif _COMMAND.match(line) and (fence is not None or re.match(r" {4}|\t| *\$ ", line)):
            lines.append(line)
    if len(re.findall(r"(?m)^ *<!-- *test", text)) != sum(block.how != "" for block in page_blocks):
        lines.append("a comment about a test that is not right above a block")
    return lines + re.findall(r"<pre.*", rest)


def spoken(page: Path) -> Iterator[str]:
    """Commands of a page: lines of its blocks, continued ones joined, and code between backticks."""
    for block in blocks(page):
        if block.language == "sh":
            yield from block.text.replace("\\\n", " ").splitlines()
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from (quoted.replace("\n", " ") for quoted in re.findall(r"`([^`]+)`", text))
