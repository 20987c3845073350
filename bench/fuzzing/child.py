"""One target in a process of its own: ``python -m bench.fuzzing.child TARGET SEED SECONDS``, reports as lines of JSON
on stdout."""

from __future__ import annotations

import faulthandler
import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow
import structlog

from bench.fuzzing.hunting import MAX_PEAK_MB, hunt
from bench.fuzzing.targets import TARGETS


def tell(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


def main(name: str, seed: str, seconds: str) -> None:
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    pyarrow.array([0])  # now its allocator reserves 1 GiB, which would else count as used
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (MAX_PEAK_MB << 20),) * 2)
    tell(hunt(TARGETS[name](), int(seed), float(seconds), tell=tell) | {"ended": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
