"""Every planted bug can be planted in today's files. A few are planted in every run, all of them by ``make
planted-bugs``.
"""

import pytest

from stream.local.kafka import REPO_ROOT
from tests.planted_bugs.bugs import BUGS, QUICK
from tests.planted_bugs.planting import PARTS, copy_tree, noticed


def test_the_text_that_a_planted_bug_replaces_stands_once_in_its_file():
    """Whoever changes such a line must update the bug's text in ``tests/planted_bugs/bugs.txt``."""
    for bug in BUGS:
        assert (REPO_ROOT / bug.file).read_text(encoding="utf-8").count(bug.before) == 1
        assert (REPO_ROOT / bug.test).exists()
        assert bug.file.partition("/")[0] in PARTS, "its copy holds no such file"


def test_there_are_at_least_forty_planted_bugs_and_no_name_twice():
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert {bug.name for bug in BUGS} >= set(QUICK)


@pytest.mark.timeout(600)
def test_a_planted_bug_makes_its_test_fail(tmp_path):
    copy = copy_tree(tmp_path / "copy")
    verdicts = {bug.name: noticed(bug, copy) for bug in BUGS if bug.name in QUICK}
    assert set(verdicts.values()) == {"noticed"}, verdicts
