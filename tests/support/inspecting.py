"""Inspections of files, as the command makes them."""

from pathlib import Path

from stream.config import Config
from stream.diagnosis.inspection import Inspection, inspect, odd
from stream.diagnosis.measures import measure
from stream.diagnosis.observing import inspection_config, observe_file
from stream.diagnosis.reading import Observations

CONFIG = inspection_config(None)
"""By which sources are read of which nothing is configured."""


def inspected(path: Path, given: Config | None = None, limit: int = 10**6) -> Inspection:
    return inspect(observe_file(path, limit, given), path, given, limit)


def problems(seen: Observations) -> list[str]:
    return odd(seen, measure(seen), CONFIG)
