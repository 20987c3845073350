"""``python -m tests.planted_bugs [--quick] [--only TEXT] [--jobs N]``: plant every bug in a copy of the
tree.

First the named tests must pass in a copy without a bug; then each bug must make its test fail. Exit 0 if every bug made
its test fail, 1 otherwise. The tree itself is never changed.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.planted_bugs.bugs import BUGS, QUICK, Bug
from tests.planted_bugs.planting import copy_tree, failing_without_a_bug, noticed


def main() -> int:
    """The whole run; returns the exit code."""
    options = argparse.ArgumentParser(prog="planted-bugs", description=__doc__)
    options.add_argument("--quick", action="store_true", help="only the few that every run of the tests plants")
    options.add_argument("--only", default="", help="only bugs whose name contains this")
    options.add_argument("--jobs", type=int, default=2, help="copies of the tree that are tested at once (2)")
    given = options.parse_args()
    bugs = [bug for bug in BUGS if given.only in bug.name and (not given.quick or bug.name in QUICK)]
    started = time.monotonic()
    with TemporaryDirectory(prefix="planted-bugs-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            copies.put(copy_tree(Path(folder) / str(job)))

        def judged(bug: Bug) -> tuple[str, float]:
            copy, begun = copies.get(), time.monotonic()
            try:
                return noticed(bug, copy), time.monotonic() - begun
            finally:
                copies.put(copy)

        whole = copies.get()
        broken = failing_without_a_bug(bugs, whole, given.jobs)
        copies.put(whole)
        if broken:
            print(f"tests that fail without any bug: what they notice would mean nothing\n{broken}")
        missed = 0
        for bug, (verdict, seconds) in zip(bugs, pool.map(judged, bugs), strict=True):
            missed += verdict != "noticed"
            test = f"{bug.test} -k '{bug.select}'" if bug.select else bug.test
            print(f"{verdict:10} {seconds:5.1f} s  {bug.name:72} {test}", flush=True)
    print(
        f"{len(bugs) - missed} of {len(bugs)} planted bugs noticed in {time.monotonic() - started:.0f} s",
        file=sys.stderr,
    )
    return 1 if missed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
