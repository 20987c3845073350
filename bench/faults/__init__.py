"""A campaign of faults against real servers and workers, judged by an independent checker.

Sites run beside each other. Each has brokers, a Redis, feeds under both relations and the faults of
:data:`bench.faults.injectors.FAULTS`, in an order that its seed decides. What vehicles and attackers send goes on all
the while. In the end :mod:`bench.faults.checker` compares what was released with what was sent.
"""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.faults.campaign import Outcome, Schedule, figures, run_site, seeds
from bench.faults.injectors import FAULTS
from bench.faults.site import SiteSizes

SEED = 20170321


_ONE_BROKER = SiteSizes(("maps", "riders", "plain"), workers=2, brokers=1, rate=400, slot=6, ahead=8)
_THREE_BROKERS = SiteSizes(("plain", "riders"), workers=2, brokers=3, rate=400, slot=6, ahead=8)
_ALL_DAY = Schedule(tuple(FAULTS), count=250, seconds=3_000.0, lasting=(1.0, 18.0))
_OF_BROKERS = Schedule(
    ("broker killed", "broker restarted", "broker stopped", "broker away", "worker killed", "redis killed"),
    count=60,
    seconds=3_000.0,
    lasting=(1.0, 12.0),
)
_QUICK_FAULTS = (
    "worker restarted",
    "worker stopped",
    "closing or publishing process killed",
    "redis killed",
    "redis stopped",
    "store torn",
    "store cut",
    "store full",
    "store emptied",
    "broker killed",
    "hostile messages",
    "compressed bomb",
    "flood of one user",
    "10 000 invented users",
    "events of past hours",
    "producers' clocks off",
    "dead readers",
)

FULL = ((_ONE_BROKER, _ALL_DAY), (_ONE_BROKER, _ALL_DAY), (_THREE_BROKERS, _OF_BROKERS))
QUICK = (
    (
        SiteSizes(("maps", "riders"), workers=1, brokers=1, rate=1_000, slot=2, ahead=2),
        Schedule(_QUICK_FAULTS, count=len(_QUICK_FAULTS), seconds=120.0, lasting=(0.5, 1.0), waits=False),
    ),
)


def run(quick: bool) -> dict[str, Any]:
    """The campaign's figures: faults, windows, events, violations of the checker's rules, and seconds of recovery.

    Prints a line on stderr after every fault, or a progress bar on a terminal.
    """
    sites = QUICK if quick else FULL
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # brokers are away on purpose
    began, whole = time.monotonic(), Outcome()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("faults", total=sum(schedule.count for _, schedule in sites))

        def said(line: str) -> None:
            progress.advance(bar)
            progress.update(bar, description=line[:60])
            if not sys.stderr.isatty():
                print(f"{time.monotonic() - began:7.1f} s  {line}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(len(sites)) as pool:
            given = seeds(SEED, len(sites))
            running = [
                pool.submit(run_site, site, schedule, own, said)
                for (site, schedule), own in zip(sites, given, strict=True)
            ]
            for site in running:
                whole.add(site.result())
    return figures(whole, time.monotonic() - began)
