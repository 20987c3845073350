"""``hexveil query``: ranges answered from a file of releases, by its own code and by the schema's words alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dpcore.spatial import Rectangles, histogram_from_release
from stream.cli import app
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.messages.range_query import RangeError, count_in, parse_box
from stream.offline import LinePublisher
from tests.stream.statistics.test_histograms import bodies_of, released
from tests.support.builders import EVERY_MECHANISM, SLOT, located_rows, with_histograms

BOX = "-97.8,30.2,-97.6,30.5"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two windows of every mechanism, as offline replay writes them."""
    folder = tmp_path_factory.mktemp("releases")
    file = folder / "releases.ndjson"
    with file.open("w") as out:
        publisher = LinePublisher(out)
        for number in range(2):
            config = with_histograms("values", folder)
            messages = released(config, located_rows(number, 300, slot=SLOT + 3600 * number), slot=SLOT + 3600 * number)
            asyncio.run(publisher.publish(messages))
    return file


def query(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["query", *map(str, arguments)], input=stdin)


def histograms_in(file: Path) -> list[dict]:
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [record["value"] for record in records if record["topic"] == SPATIAL_HISTOGRAM]


def read_by_the_schema(release: dict, west: float, south: float, east: float, north: float) -> tuple[float, float]:
    """Count and half width from the message alone, as its schema describes them: no numpy, none of our code."""
    domain, structure = release["domain"], release["structure"]
    height = (domain["north"] - domain["south"]) / domain["rows"]
    width = (domain["east"] - domain["west"]) / domain["columns"]
    qx0, qx1 = (south - domain["south"]) / height, (north - domain["south"]) / height
    qy0, qy1 = (west - domain["west"]) / width, (east - domain["west"]) / width
    total = variance = largest = 0.0
    if structure["kind"] == "euler":
        x0, x1 = math.floor(qx0 + 1e-9), math.ceil(qx1 - 1e-9)
        y0, y1 = math.floor(qy0 + 1e-9), math.ceil(qy1 - 1e-9)
        for i in range(2 * x0, 2 * x1 - 1):
            for j in range(2 * y0, 2 * y1 - 1):
                total += (-1) ** (i + j) * structure["components"][i][j]
        parts = (2 * (x1 - x0) - 1) * (2 * (y1 - y0) - 1)
        return total, 2.118 * math.sqrt(parts * structure["variance"]) + 1
    for x0, x1, y0, y1, count, noise in blocks_of(structure):
        across = max(0.0, min(qx1, x1) - max(qx0, x0)) * max(0.0, min(qy1, y1) - max(qy0, y0))
        share = across / ((x1 - x0) * (y1 - y0))
        total += share * count
        variance += share**2 * noise
        largest = max(largest, share)
    return total, 2.118 * math.sqrt(variance) + largest


def blocks_of(structure: dict) -> list[tuple]:
    if structure["kind"] == "partition":
        return [
            (*box, c, v)
            for box, c, v in zip(structure["boxes"], structure["counts"], structure["variances"], strict=True)
        ]
    x, y, variances = structure["x_edges"], structure["y_edges"], structure["variances"]
    return [
        (x[i], x[i + 1], y[j], y[j + 1], count, variances[i][j] if isinstance(variances, list) else variances)
        for i, row in enumerate(structure["counts"])
        for j, count in enumerate(row)
    ]


@pytest.mark.parametrize("mechanism", EVERY_MECHANISM)
def test_a_release_is_read_with_plain_json_and_the_words_of_its_schema_as_we_read_it(
    releases: Path, mechanism: str
) -> None:
    rng = np.random.default_rng(3)
    for release in (one for one in histograms_in(releases) if one["mechanism"] == mechanism):
        for _ in range(20):
            south, north = sorted(rng.uniform(30.1, 30.6, 2))
            west, east = sorted(rng.uniform(-97.9, -97.5, 2))
            told = count_in(release, (west, south, east, north))
            value, half = read_by_the_schema(release, west, south, east, north)
            assert told["value"] == pytest.approx(value, abs=1e-5)
            low, high = told["interval"]
            assert (high - low) / 2 == pytest.approx(half, rel=1e-3, abs=1e-5)


def test_every_window_and_mechanism_answers_and_they_can_be_chosen(releases: Path) -> None:
    everything = json.loads(query(releases, "--bbox", BOX, "--json").stdout)["answers"]
    assert [(a["window"]["start"], a["mechanism"]) for a in everything] == [
        (start, name) for start in ("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z") for name in sorted(EVERY_MECHANISM)
    ]
    one = query(releases, "--bbox", BOX, "--window", "2017-03-21T07:00:00-05:00", "--mechanism", "htf", "--json")
    (answer,) = json.loads(one.stdout)["answers"]
    release = next(one for one in histograms_in(releases) if one["mechanism"] == "htf")
    histogram = histogram_from_release(release)
    (value,), (half,) = histogram.query(Rectangles.of_boxes(histogram.domain, [[30.2, -97.8, 30.5, -97.6]]))
    assert answer["value"] == pytest.approx(value, abs=1e-6)
    assert answer["interval"] == pytest.approx([value - half, value + half], abs=1e-6)
    shown = query(releases, "--bbox", BOX, "--bbox", "-97.9,30.1,-97.5,30.6", "--mechanism", "htf")
    assert shown.exit_code == 0
    assert shown.stdout.count("htf") == 4
    assert f"{value:.1f}" in shown.stdout


def test_regions_are_answered_for_the_cells_that_the_range_meets_and_say_so(releases: Path) -> None:
    answer = json.loads(query(releases, "--bbox", "-97.74,30.24,-97.66,30.29", "--mechanism", "euler", "--json").stdout)
    assert answer["answers"][0]["bbox"] == [-97.75, 30.225, -97.65, 30.35]  # cells are 0.0625 by 0.05 degrees


def test_compressed_files_standard_input_and_bare_values_are_read_too(releases: Path, tmp_path: Path) -> None:
    expected = json.loads(query(releases, "--bbox", BOX, "--json").stdout)
    packed = tmp_path / "releases.ndjson.gz"
    packed.write_bytes(gzip.compress(releases.read_bytes()))
    assert json.loads(query(packed, "--bbox", BOX, "--json").stdout) == expected
    assert json.loads(query("-", "--bbox", BOX, "--json", stdin=releases.read_bytes()).stdout) == expected
    bare = tmp_path / "values.ndjson"
    bare.write_text("".join(json.dumps(body) + "\n" for body in histograms_in(releases) * 2))
    assert json.loads(query(bare, "--bbox", BOX, "--json").stdout) == expected, "repeats count once"


REFUSED = {
    ("--bbox", "-97.8,30.2,-97.6"): "four numbers",
    ("--bbox", "-97.6,30.2,-97.8,30.5"): "west first",
    ("--bbox", "nan,30.2,-97.8,30.5"): "no box",
    ("--bbox", "-98.8,30.2,-97.6,30.5"): "cut the range to bbox=-97.9,30.1,-97.5,30.6",
    ("--bbox", BOX, "--window", "2017-03-22T12:00:00Z"): "there are: 2017-03-21T12:00:00Z, 2017-03-21T13:00:00Z",
    ("--bbox", BOX, "--window", "yesterday"): "no histogram of window",
    ("--bbox", BOX, "--mechanism", "dawa"): "there are: ag, auto, e2epriv",
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.items())
def test_a_question_that_cannot_be_answered_is_refused_with_the_remedy(
    releases: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = query(releases, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_files_that_are_no_releases_are_refused(releases: Path, tmp_path: Path) -> None:
    missing = query(tmp_path / "none.ndjson", "--bbox", BOX)
    assert (missing.exit_code, "cannot read" in missing.stderr) == (2, True)
    empty = tmp_path / "empty.ndjson"
    empty.write_text("\n{}\n")
    assert "configure [histogram]" in query(empty, "--bbox", BOX).stderr
    broken = tmp_path / "broken.ndjson"
    for text in (f'{{"topic":"{SPATIAL_HISTOGRAM}"', f'["topic","{SPATIAL_HISTOGRAM}"]', '{"structure":{}}'):
        broken.write_text(text + "\n")
        found = query(broken, "--bbox", BOX)
        assert (found.exit_code, "line 1" in found.stderr) == (2, True)
    (body, *_) = histograms_in(releases)
    other = body | {"structure": body["structure"] | {"counts": [1.0] * len(body["structure"]["counts"])}}
    broken.write_text(json.dumps(body) + "\n" + json.dumps(other) + "\n")
    assert "other numbers than before" in query(broken, "--bbox", BOX).stderr
    broken.write_text(json.dumps(body | {"structure": {"kind": "cloud"}}) + "\n")
    assert "reads grid, partition and euler" in query(broken, "--bbox", BOX).stderr
    torn = tmp_path / "torn.ndjson.gz"
    torn.write_bytes(gzip.compress(releases.read_bytes())[:500])
    assert query(torn, "--bbox", BOX).exit_code == 2


def test_a_whole_box_may_be_asked_and_a_hair_more_may_not(tmp_path: Path) -> None:
    (body, *_) = bodies_of(released(with_histograms("values", tmp_path, ["ug"]), located_rows(1, 100)))
    assert count_in(body, parse_box("-97.9,30.1,-97.5,30.6"))["unit"] == "1"
    with pytest.raises(RangeError, match="north"):
        count_in(body, parse_box("-97.9,30.1,-97.5,30.6001"))
