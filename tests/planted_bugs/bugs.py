"""The planted bugs of ``bugs.txt``: each its name, its file, the test that must fail, the text that it replaces, which
stands once in the file, and the text that it puts there; a blank line ends it::

    values: a partial grant is admitted
      in stream/statistics/values/plan.py
      by tests/audit/test_values_audit.py -k cannot_pay
    - left >= due.terms.window_grant
    + left > 0
"""

from pathlib import Path
from typing import NamedTuple


class Bug(NamedTuple):
    """``before`` occurs once in ``file``. ``test``: a pytest node, or a file and what ``-k`` selects in it."""

    name: str
    file: str
    before: str
    after: str
    test: str
    select: str = ""


def read(block: str) -> Bug:
    """The bug that a block of ``bugs.txt`` describes."""
    name, file, by, *lines = block.split("\n")
    test, _, select = by.removeprefix("  by ").partition(" -k ")
    before, after = ("\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in "-+")
    return Bug(name, file.removeprefix("  in "), before, after, test, select)


BUGS = tuple(map(read, Path(__file__).with_name("bugs.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")))
QUICK = ("participation: half of the noise is added", "commit: the last writer wins")
"""Names of the few bugs that every run of the test suite plants."""
