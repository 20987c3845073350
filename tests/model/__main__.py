"""``python -m tests.model [--full] [--traces]``: explore the release protocol as it is shipped, and refute the broken
ones.

Exit 0 if no rule is broken as shipped and each broken variant is refuted, 1 otherwise.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from stream.local.server import RedisServer
from tests.model.exploring import Graph, explore
from tests.model.server import StateServer
from tests.model.variants import BROKEN, BROKEN_SHARED, KNOWN_LIMIT, KNOWN_LIMIT_SHARED, SHARED, SHIPPED, SLOW, Variant
from tests.model.world import world_of

QUICK = (SHIPPED._replace(faults=1), SHIPPED._replace(set_back=True), SHIPPED._replace(windows=2))
"""What every run of the tests explores: one window, and two of which any may be begun at any time."""
FULL = (
    SHIPPED._replace(faults=2),
    SHIPPED._replace(faults=1, set_back=True),
    SHIPPED._replace(faults=2, set_back=True),
    SHIPPED._replace(windows=2, faults=1),
    SHIPPED._replace(windows=2, set_back=True),
    SHARED._replace(faults=1),
    SHARED._replace(set_back=True),
)


def report(variant: Variant, graph: Graph, seconds: float) -> str:
    """A line of the table, and the trace."""
    setting = f"{variant.windows} window{'s' * (variant.windows > 1)}, {variant.faults} faults"
    setting += ", Redis set back" * variant.set_back
    verdict = "refuted" if graph.trace else "holds"
    size = f"{len(graph.states):9} states {graph.transitions:9} transitions {seconds:6.1f} s"
    return f"{verdict:7} {size}  {variant.name} ({setting})"


def main() -> int:
    """Explore; returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    options.add_argument("--full", action="store_true", help="two windows and more faults too, for some minutes")
    options.add_argument("--traces", action="store_true", help="print the counterexamples")
    given, wrong = options.parse_args(), 0
    with TemporaryDirectory() as folder, RedisServer(Path(folder), appendfsync="no") as redis:
        server = StateServer(redis)
        for variant in (
            *QUICK,
            *(FULL if given.full else ()),
            SHARED,
            *BROKEN,
            *BROKEN_SHARED,
            KNOWN_LIMIT,
            *[SLOW, KNOWN_LIMIT_SHARED] * given.full,
        ):
            started = time.process_time()
            graph = explore(world_of(server, Path(folder), variant))
            print(report(variant, graph, time.process_time() - started), flush=True)
            if given.traces and graph.trace:
                print("    " + "\n    ".join(graph.trace))
            wrong += bool(graph.trace) == (variant.name in (SHIPPED.name, SHARED.name))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
