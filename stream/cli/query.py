"""``hexveil query``: counts users in ranges of the map, from a file of releases. Needs no server, costs no budget."""

import json
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from stream.cli.options import AsJson, show, stop, table_of
from stream.messages.lines import lines_in
from stream.messages.message import SPATIAL_HISTOGRAM, validator
from stream.windows import utc_text

_TOPIC = f'"{SPATIAL_HISTOGRAM}"'.encode()
_STRUCTURE = b'"structure"'


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help="File of releases from replay --offline, one JSON object per line, plain or .gz; '-': stdin."
        ),
    ],
    bbox: Annotated[
        list[str], typer.Option(help="Range as west,south,east,north in degrees; repeat the option for several ranges.")
    ],
    window: Annotated[
        str | None,
        typer.Option(help="Only the window that starts at this time, like 2017-03-21T12:00:00Z; default: all."),
    ] = None,
    mechanism: Annotated[str | None, typer.Option(help="Only histograms of this mechanism; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count users in ranges, with 95 % intervals of the exact numbers, from released spatial histograms."""
    from stream.messages.range_query import count_in, parse_box, read_histogram

    try:
        boxes = [parse_box(text) for text in bbox]
        chosen = _chosen(list(_histograms(file)), window, mechanism)
        answers = [
            count_in(release, box, histogram)
            for release, histogram in ((release, read_histogram(release)) for release in chosen)
            for box in boxes
        ]
    except (OSError, EOFError, zlib.error) as error:
        stop(f"cannot read {file}: {error}")
    if as_json:
        typer.echo(json.dumps({"answers": answers}, allow_nan=False))
        return
    words = {
        "window": lambda answer: answer["window"]["start"],
        "mechanism": lambda answer: answer["mechanism"],
        "west,south,east,north": lambda answer: ",".join(f"{bound:g}" for bound in answer["bbox"]),
    }
    numbers = {
        "ε": lambda answer: f"{answer['epsilon']:g}",
        "count": lambda answer: f"{answer['value']:.1f}",
        "95 % interval": lambda answer: " .. ".join(map(str, answer["interval"] or ["none: noise unknown"])),
    }
    show(table_of(answers, words, numbers), width=150)


def _histograms(file: Path) -> Iterable[dict[str, Any]]:
    """Histograms of the file, each once, sorted by (window, feed, mechanism). Lines are releases or values of
    messages."""
    from dpcore.errors import ParameterError
    from stream.messages.range_query import read_histogram

    bodies: dict[tuple[str, str, str], dict[str, Any]] = {}
    for number, line in enumerate(lines_in(file), start=1):
        if _TOPIC not in line and not (_STRUCTURE in line and b'"topic"' not in line):
            continue
        try:
            record = msgspec.json.decode(line)
            body = record.get("value", record)
            if not validator(SPATIAL_HISTOGRAM).is_valid(body):
                read_histogram(body)  # explains a structure that only another version reads
                raise ValueError("not a spatial histogram")
        except ParameterError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            stop(f"line {number} of {file} is not a release; give a file that 'hexveil replay --offline' wrote")
        key = (body["window"]["start"], body["feed"], body["mechanism"])
        if bodies.setdefault(key, body) != body:
            stop(
                f"line {number} of {file} releases histogram {key[2]} of window {key[0]} again, with other numbers; "
                "give a file with the releases of one run"
            )
    return [bodies[key] for key in sorted(bodies)]


def _chosen(releases: list[dict[str, Any]], window: str | None, mechanism: str | None) -> list[dict[str, Any]]:
    if not releases:
        stop("these releases contain no spatial histogram; configure [histogram] and release again")
    if window is not None:
        releases = _only(releases, "window", _utc(window), lambda release: release["window"]["start"])
    if mechanism is not None:
        releases = _only(releases, "mechanism", mechanism, lambda release: release["mechanism"])
    return releases


def _only(
    releases: list[dict[str, Any]], what: str, asked: str, value_of: Callable[[dict[str, Any]], str]
) -> list[dict[str, Any]]:
    chosen = [release for release in releases if value_of(release) == asked]
    if not chosen:
        known = sorted({value_of(release) for release in releases})
        shown = ", ".join(known[:6]) + (f", … {known[-1]}" if len(known) > 6 else "")
        stop(f"no histogram has {what} {asked!r}; there are: {shown}")
    return chosen


def _utc(text: str) -> str:
    """A time with any offset, as releases write it. Other text is returned unchanged; it will match no window."""
    try:
        moment = datetime.fromisoformat(text)
        return utc_text(int(moment.timestamp())) if moment.tzinfo else text
    except (ValueError, OverflowError):  # no time, or in UTC one before year 1 or after year 9999
        return text
