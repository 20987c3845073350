"""Whatever is written into the topics, the memory and work of the service are bounded, and complete windows stay."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import h3
import pytest

from stream.local import REPO_ROOT
from stream.messages.message import HEXAGON_SPEED, SPATIAL_HISTOGRAM, WINDOW, Message, validator
from stream.messages.range_query import MAX_CELLS
from stream.serve.reading.intake import Arrival
from stream.serve.received import received
from stream.serve.window_store import View
from tests.stream.serve.made_windows import windows_of, with_histograms
from tests.stream.serve.serving import released
from tests.stream.serve.taking import arrivals, outcomes

FEED = {"feed.name": "bus"}


def complete(tmp_path: Path, view: View, count: int) -> list[str]:
    """Take ``count`` windows; returns their starts."""
    for number, window in enumerate(windows_of(tmp_path, FEED, count), 1):
        assert outcomes(view, arrivals(window, number))[-1] == "completed"
    return [window.start for window in view.completed()]


def forged(message: Message, **changes: object) -> bytes:
    return json.dumps(json.loads(message.value) | changes).encode()


def hour(number: int) -> dict[str, str]:
    return {
        "start": f"2018-{1 + number // 672:02d}-{1 + number // 24 % 28:02d}T{number % 24:02d}:00:00Z",
        "end": "2019-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("year", ["1969", "1970", "1999", "0001"])
def test_a_window_before_2000_is_refused_so_that_no_timestamp_is_negative(tmp_path: Path, year: str) -> None:
    for message in released(tmp_path):
        old = message.value.replace(b"2017-03-21T1", year.encode() + b"-03-21T1")
        assert received(message.topic, message.ce_id, old) is None


@pytest.mark.parametrize("cell", ["0" * 15, "f" * 15, "87489e342fffff0"])
def test_a_cell_that_h3_does_not_know_is_refused(tmp_path: Path, cell: str) -> None:
    assert not h3.is_valid_cell(cell)
    assert received(HEXAGON_SPEED, "x", forged(released(tmp_path)[0], cell=cell)) is None


NUMBERS = ("9" * 400, "1e308", "-1e308", "18446744073709551616")
PLACES = (
    ("epsilon",),
    ("users",),
    ("mean", "raw"),
    ("mean", "scale"),
    ("variance", "value"),
    ("post_processed", "mean", "interval", 1),
)


def with_number(value: bytes, place: tuple[str | int, ...], number: str) -> bytes:
    body = node = json.loads(value)
    for part in place[:-1]:
        node = node[part]
    node[place[-1]] = "@"
    return json.dumps(body).replace('"@"', number).encode()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", PLACES)
def test_a_number_that_overflows_what_readers_compute_is_refused(
    tmp_path: Path, place: tuple[str | int, ...], number: str
) -> None:
    message = released(tmp_path)[0]
    assert received(HEXAGON_SPEED, "x", message.value) is not None
    assert received(HEXAGON_SPEED, "x", with_number(message.value, place, number)) is None


@pytest.mark.parametrize("scale", ["1e-320", "1e-200", "-1"])
def test_noise_below_any_that_is_drawn_is_refused_and_none_at_all_is_not(tmp_path: Path, scale: str) -> None:
    value = released(tmp_path)[0].value
    assert received(HEXAGON_SPEED, "x", with_number(value, ("mean", "scale"), scale)) is None
    assert received(HEXAGON_SPEED, "x", with_number(value, ("mean", "scale"), "0.0")) is not None


def test_a_bound_that_overflows_is_refused_in_a_close_marker_too(tmp_path: Path) -> None:
    marker = released(tmp_path)[-1]
    assert received(WINDOW, "x", with_number(marker.value, ("clipping", "upper"), "1e200")) is None


def test_every_message_that_was_ever_pinned_is_within_the_bounds() -> None:
    values = 0
    for file in sorted((REPO_ROOT / "tests" / "golden").glob("*.ndjson.gz")):
        with gzip.open(file) as lines:
            for line in lines:
                message = json.loads(line)
                if "topic" in message:
                    assert validator(message["topic"]).is_valid(message["value"]), file
                    values += 1
    assert values > 500


def test_messages_without_a_marker_evict_no_complete_window_and_are_forgotten_oldest_first(tmp_path: Path) -> None:
    view = View(max_windows=8)
    known = complete(tmp_path, view, 5)
    message = released(tmp_path)[0]
    flood = [Arrival(HEXAGON_SPEED, f"f{n}", forged(message, window=hour(n)), 0) for n in range(900)]
    assert set(outcomes(view, flood)) == {"taken"}
    assert [window.start for window in view.completed()] == known
    unmarked = [window.start for window in view.windows.values() if window.number is None]
    assert unmarked == [hour(number)["start"] for number in range(892, 900)]


def test_bytes_without_a_marker_evict_no_complete_window(tmp_path: Path) -> None:
    view = View()
    known = complete(tmp_path, view, 3)
    message = released(tmp_path)[0]
    size = sum(window.size for window in view.windows.values())
    bounded = View(max_bytes=4 * size)
    complete(tmp_path, bounded, 3)
    flood = [Arrival(HEXAGON_SPEED, f"f{n}", forged(message, window=hour(n)), 0) for n in range(400)]
    for first in range(0, 400, 10):
        outcomes(bounded, flood[first : first + 10])
        assert sum(window.size for window in bounded.windows.values()) <= 4 * size
    assert [window.start for window in bounded.completed()] == known


def test_what_was_forgotten_is_remembered_within_bounds(tmp_path: Path) -> None:
    view, message = View(max_windows=2, max_forgotten=50), released(tmp_path)[0]
    hours = {f"f{n}": hour(n) for n in range(300)} | {"again": hour(290)}
    flood = [Arrival(HEXAGON_SPEED, ce_id, forged(message, window=window), 0) for ce_id, window in hours.items()]
    assert outcomes(view, flood)[-1] == "forgotten"
    assert len(view.forgotten) == 50


def test_a_histogram_that_claims_more_cells_than_any_configuration_can_release_is_refused_before_it_is_built(
    tmp_path: Path,
) -> None:
    messages, _ = with_histograms(tmp_path, FEED)
    body = json.loads(next(m for m in messages if m.topic == SPATIAL_HISTOGRAM).value)
    side = 8192
    body["domain"] |= {"rows": side, "columns": side}
    body["structure"] = {"kind": "grid", "x_edges": [0, side], "y_edges": [0, side], "counts": [[1]], "variances": 2.0}
    assert side * side > MAX_CELLS
    tracemalloc.start()
    assert received(SPATIAL_HISTOGRAM, "x", json.dumps(body).encode()) is None
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_list_of_histograms_decodes_no_message_again(tmp_path: Path) -> None:
    messages, _ = with_histograms(tmp_path, FEED)
    view = View()
    outcomes(view, arrivals(messages, 1))
    (window,) = view.windows.values()
    for mechanism, value in window.histograms.items():
        body = json.loads(value)
        left = {name: body[name] for name in body if name not in ("feed", "window", "structure")}
        assert json.loads(window.histogram_summaries[mechanism]) == left
