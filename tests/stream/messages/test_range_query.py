"""``hexveil query`` answers ranges from a file of releases as a reader does who knows the schema's descriptions alone.
A spatial histogram as a map: boxes that tell what range queries tell."""

import asyncio
import base64
import gzip
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from dpcore.spatial import Rectangles, histogram_from_release
from stream.messages.lines import MAX_LINE
from stream.messages.message import SPATIAL_HISTOGRAM
from stream.messages.range_query import MOST_PER_SIDE, RangeError, count_in, heat_of, parse_box, read_histogram
from stream.offline import LinePublisher
from tests.stream.serve.made_windows import MECHANISMS, histogram_message
from tests.support.builders import EVERY_MECHANISM, SLOT, located_rows, with_histograms
from tests.support.command import run
from tests.support.releasing import bodies_of, released

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


def query(*arguments: object, code: int = 0, stdin: bytes | None = None) -> Result:
    return run("query", *arguments, code=code, input=stdin)


def histograms_in(file: Path) -> list[dict]:
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [record["value"] for record in records if record["topic"] == SPATIAL_HISTOGRAM]


def release_of(file: Path, mechanism: str) -> dict:
    return next(one for one in histograms_in(file) if one["mechanism"] == mechanism)


def read_by_the_schema(
    release: dict, west: float, south: float, east: float, north: float
) -> tuple[float, tuple[float, float], float]:
    """Count, ends of its interval and standard deviation from the message alone, as its schema describes them, without
    numpy and without Hexveil's code.
    """
    domain, structure = release["domain"], release["structure"]
    height = (domain["north"] - domain["south"]) / domain["rows"]
    width = (domain["east"] - domain["west"]) / domain["columns"]
    qx0, qx1 = (south - domain["south"]) / height, (north - domain["south"]) / height
    qy0, qy1 = (west - domain["west"]) / width, (east - domain["west"]) / width
    if structure["kind"] == "euler":
        x0, x1 = math.floor(qx0 + 1e-9), math.ceil(qx1 - 1e-9)
        y0, y1 = math.floor(qy0 + 1e-9), math.ceil(qy1 - 1e-9)
        answers = structure.get("ordered", structure["components"])
        shown, drawn = (
            sum((-1) ** (i + j) * of[i][j] for i in range(2 * x0, 2 * x1 - 1) for j in range(2 * y0, 2 * y1 - 1))
            for of in (answers, structure.get("drawn", structure["components"]))
        )
        b = (2 * (x1 - x0) - 1) * (2 * (y1 - y0) - 1)
        variance, left = b * structure["variance"], structure.get("total")
        if left:
            every = structure["components"]
            whole = sum((-1) ** (i + j) * count for i, row in enumerate(every) for j, count in enumerate(row))
            c = len(every) * len(every[0]) + left["variance"] / structure["variance"]
            shown, drawn = (sum_ + b * (left["value"] - whole) / c for sum_ in (shown, drawn))
            variance *= 1 - b / c
        deviation = math.sqrt(variance)
        return shown, (max(0, drawn - reach(deviation)), max(0, drawn) + reach(deviation)), deviation
    blocks = blocks_of(structure)
    total = inner = outer = 0.0
    inside, touched = [], []
    for block, (x0, x1, y0, y1, count) in enumerate(blocks):
        across = max(0.0, min(qx1, x1) - max(qx0, x0)) * max(0.0, min(qy1, y1) - max(qy0, y0))
        share = across / ((x1 - x0) * (y1 - y0))
        total += share * count
        if share > 1 - 1e-9:
            inner += count
            inside.append(block)
        if share > 1e-9:
            outer += count
            touched.append(block)
    of = {"independent": of_independent, "haar": of_haar}.get(str(structure["noise"]), of_tree)
    si, so = math.sqrt(of(structure, inside)), math.sqrt(of(structure, touched))
    return total, (max(0, inner - reach(si)), max(0, outer) + reach(max(si, so))), max(si, so)


def reach(s: float) -> float:
    return 2.119 * math.sqrt(s * s + 1 / 6) + 0.5 if s else 0.0


def blocks_of(structure: dict) -> list[tuple]:
    if structure["kind"] == "partition":
        return [(*box, count) for box, count in zip(structure["boxes"], structure["counts"], strict=True)]
    x, y, rows = structure["x_edges"], structure["y_edges"], structure["counts"]
    if isinstance(rows, dict):
        planes, n, columns = zlib.decompress(base64.b64decode(rows["planes"])), (len(x) - 1) * (len(y) - 1), len(y) - 1
        least = rows["least"]
        counts = [least + sum(planes[k * n + block] << 8 * k for k in range(4)) for block in range(n)]
        rows = [counts[first : first + columns] for first in range(0, n, columns)]
    return [(x[i], x[i + 1], y[j], y[j + 1], count) for i, row in enumerate(rows) for j, count in enumerate(row)]


def of_independent(structure: dict, blocks: list[int]) -> float:
    variances = structure["variances"]
    return sum(variances[block] if isinstance(variances, list) else variances for block in blocks)


def of_haar(structure: dict, blocks: list[int]) -> float:
    if not blocks:
        return 0.0
    rows, columns = len(structure["counts"]), len(structure["counts"][0])
    i, j = [block // columns for block in blocks], [block % columns for block in blocks]
    assert len(blocks) == (max(i) + 1 - min(i)) * (max(j) + 1 - min(j))
    one = h(0, 1, rows) * h(0, 1, columns)
    return structure["variances"] * h(min(i), max(i) + 1, rows) * h(min(j), max(j) + 1, columns) / one


def h(a: int, b: int, blocks: int) -> float:
    m = 1
    while m < blocks:
        m *= 2
    total, k = ((b - a) / m) ** 2, m
    while k > 1:
        for start in range(0, m, k):
            first = len([c for c in range(a, b) if start <= c < start + k // 2])
            second = len([c for c in range(a, b) if start + k // 2 <= c < start + k])
            total += ((first - second) / k) ** 2
        k //= 2
    return total


def of_tree(structure: dict, blocks: list[int]) -> float:
    tree, chosen = structure["noise"], set(blocks)
    children, following, kids = tree["children"], 1, []
    for number in children:
        kids.append(range(following, following + number))
        following += number
    leaf = {
        node: number
        for number, node in enumerate(node for node, own_children in enumerate(children) if not own_children)
    }
    v, w, total = {}, {}, 0.0
    for node in reversed(range(len(children))):
        v[node] = tree["variances"][tree["draw"][node]]
        if node in leaf:
            w[node] = 1.0 if leaf[node] in chosen else 0.0
            continue
        s = sum(v[kid] for kid in kids[node])
        vw = sum(v[kid] * w[kid] for kid in kids[node])
        total += sum(v[kid] * w[kid] ** 2 for kid in kids[node]) - vw**2 / s
        v[node], w[node] = 1 / (1 / v[node] + 1 / s), vw / s
    return max(0.0, total + v[0] * w[0] ** 2)


@pytest.mark.parametrize("mechanism", EVERY_MECHANISM)
def test_a_release_is_read_with_plain_json_and_the_words_of_its_schema_as_we_read_it(releases, mechanism):
    for release in (one for one in histograms_in(releases) if one["mechanism"] == mechanism):
        read_alike(release, 20)


def test_so_is_a_grid_of_more_cells_than_are_listed_as_rows(tmp_path):
    """Its counts are packed: 400 × 400 of them take a quarter of a message."""
    fine = {"histogram.rows": 400, "histogram.columns": 400}
    messages = released(with_histograms("values", tmp_path, ["singular"], **fine), located_rows(1, 300))
    (release,) = bodies_of(messages)
    assert set(release["structure"]["counts"]) == {"least", "planes"}
    read_alike(release, 3)


def read_alike(release: dict, ranges: int) -> None:
    """Assert that random ranges are answered as :func:`read_by_the_schema` does."""
    rng = np.random.default_rng(3)
    for _ in range(ranges):
        south, north = sorted(rng.uniform(30.1, 30.6, 2))
        west, east = sorted(rng.uniform(-97.9, -97.5, 2))
        counted = count_in(release, (west, south, east, north))
        raw, (least, most), deviation = read_by_the_schema(release, west, south, east, north)
        assert counted["raw"] == pytest.approx(raw, abs=1e-5)
        # Hexveil's intervals are a little narrower: their quantiles are exact, and near 0 an interval can miss
        # on one side only.
        low, high = counted["interval"]
        least_whole, most_whole = math.ceil(least - 1e-5), math.floor(most + 1e-5)
        if least_whole > most_whole:  # Each sum has noise of its own: in a rare draw they contradict each other.
            assert low == high
            continue
        assert least_whole <= low <= least + 2 + deviation
        assert most - 2 - deviation <= high <= most_whole
        assert low <= counted["value"] <= high


def test_every_window_and_mechanism_answers_and_they_can_be_chosen(releases):
    everything = json.loads(query(releases, "--bbox", BOX, "--json").stdout)["answers"]
    assert [(a["window"]["start"], a["mechanism"]) for a in everything] == [
        (start, name) for start in ("2017-03-21T12:00:00Z", "2017-03-21T13:00:00Z") for name in sorted(EVERY_MECHANISM)
    ]
    one = query(releases, "--bbox", BOX, "--window", "2017-03-21T07:00:00-05:00", "--mechanism", "htf", "--json")
    (answer,) = json.loads(one.stdout)["answers"]
    histogram = histogram_from_release(release_of(releases, "htf"))
    ranges = Rectangles.of_boxes(histogram.domain, [[30.2, -97.8, 30.5, -97.6]])
    interval = histogram.intervals(ranges)
    assert interval is not None
    low, high = answer["interval"]
    assert [low, high] == [interval.low[0], interval.high[0]]
    assert answer["raw"] == pytest.approx(histogram.answers(ranges)[0], abs=1e-6)
    assert low <= answer["value"] <= high
    shown = query(releases, "--bbox", BOX, "--bbox", "-97.9,30.1,-97.5,30.6", "--mechanism", "htf")
    assert shown.stdout.count("htf") == 4
    assert f"{answer['value']:.1f}" in shown.stdout
    assert f"{low} .. {high}" in shown.stdout
    regions = query(releases, "--bbox", "-97.74,30.24,-97.66,30.29", "--mechanism", "euler", "--json")
    (answer, _) = json.loads(regions.stdout)["answers"]
    assert answer["bbox"] == [-97.75, 30.225, -97.65, 30.35], "of regions the cells, 0.0625 by 0.05 degrees"


def test_compressed_files_standard_input_and_bare_values_are_read_too(releases, tmp_path):
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
    ("--bbox", "-97.6,30.2,-97.8,30.5"): "lies outside the histogram's domain",
    ("--bbox", "nan,30.2,-97.8,30.5"): "not a box",
    ("--bbox", "-98.8,30.2,-97.6,30.5"): "cut the range to bbox=-97.9,30.1,-97.5,30.6",
    ("--bbox", BOX, "--window", "2017-03-22T12:00:00Z"): "there are: 2017-03-21T12:00:00Z, 2017-03-21T13:00:00Z",
    ("--bbox", BOX, "--window", "yesterday"): "no histogram has window",
    ("--bbox", BOX, "--window", "0001-01-01T00:00:00+23:00"): "there are: 2017-03-21T12:00:00Z",
    ("--bbox", BOX, "--window", "9999-12-31T23:59:59-23:00"): "there are: 2017-03-21T12:00:00Z",
    ("--bbox", BOX, "--mechanism", "dawa"): "there are: ag, auto, e2epriv",
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.items())
def test_a_question_that_cannot_be_answered_is_refused_with_the_remedy(releases, arguments, said):
    result = query(releases, *arguments, code=2)
    assert said in result.stderr
    assert result.stdout == ""


def test_files_that_are_no_releases_are_refused(releases, tmp_path):
    assert "cannot read" in query(tmp_path / "none.ndjson", "--bbox", BOX, code=2).stderr
    empty = tmp_path / "empty.ndjson"
    empty.write_text("\n{}\n")
    assert "configure [histogram]" in query(empty, "--bbox", BOX, code=2).stderr
    broken = tmp_path / "broken.ndjson"
    for text in (
        f'{{"topic":"{SPATIAL_HISTOGRAM}"'.encode(),
        f'["topic","{SPATIAL_HISTOGRAM}"]'.encode(),
        b'{"structure":{}}',
        b'{"structure":{},"window":{"start":[]},"feed":{},"mechanism":1}',
        b'{"structure":{},"window":{"start":null},"feed":null,"mechanism":null}',
        b'{"structure":' + b"[" * 5000,
        b'{"structure":"\xff"}',
    ):
        broken.write_bytes(text + b"\n")
        assert "line 1" in query(broken, "--bbox", BOX, code=2).stderr
    (body, *_) = histograms_in(releases)
    other = body | {"structure": body["structure"] | {"counts": [1.0] * len(body["structure"]["counts"])}}
    broken.write_text(json.dumps(body) + "\n" + json.dumps(other) + "\n")
    assert "with other numbers" in query(broken, "--bbox", BOX, code=2).stderr
    broken.write_text(json.dumps(body | {"structure": {"kind": "cloud"}}) + "\n")
    assert "reads grid, packed-grid, partition and euler" in query(broken, "--bbox", BOX, code=2).stderr
    damaged = tmp_path / "damaged.ndjson.gz"
    for content in (gzip.compress(releases.read_bytes())[:500], b"\x1f\x8b\x08\x00\xc3\xcd\xec\xde\xcc4\xb7"):
        damaged.write_bytes(content)
        assert "cannot read" in query(damaged, "--bbox", BOX, code=2).stderr


@pytest.mark.parametrize("forged", ["1e308", "-1", "1e-320", "9" * 400])
def test_noise_that_nobody_can_have_drawn_gives_no_answer(releases, tmp_path, forged):
    body = release_of(releases, "ug")
    body["structure"]["variances"] = "@"
    file = tmp_path / "forged.ndjson"
    file.write_text(json.dumps(body).replace('"@"', forged) + "\n")
    result = query(file, "--bbox", BOX, "--json", code=2)
    assert "is not a release" in result.stderr or "unusable value" in result.stderr


def test_a_whole_box_may_be_asked_and_a_hair_more_may_not(releases):
    body = release_of(releases, "ug")
    assert count_in(body, parse_box("-97.9,30.1,-97.5,30.6"))["unit"] == "1"
    with pytest.raises(RangeError, match="north"):
        count_in(body, parse_box("-97.9,30.1,-97.5,30.6001"))


def test_a_number_without_a_known_noise_has_no_interval_and_says_so(releases, tmp_path):
    body = release_of(releases, "ug")
    del body["structure"]["noise"]
    counted = count_in(body, parse_box(BOX))
    assert counted["interval"] is None
    assert counted["value"] == counted["raw"]
    file = tmp_path / "old.ndjson"
    file.write_text(json.dumps(body) + "\n")
    assert "none: noise unknown" in query(file, "--bbox", BOX).stdout


def test_a_line_longer_than_serve_reads_is_refused_before_the_rest_of_it_is_unpacked(tmp_path):
    """A line of 1 GB in 1 MB of gzip took 2 GB of memory."""
    whole = gzip.compress(b" " * (2 * MAX_LINE), 1)
    file = tmp_path / "releases.ndjson.gz"
    file.write_bytes(whole[:-4] + b"this is no gzip")  # reading on would fail here, with another sentence
    answer = query(file, "--bbox=-97.9,30.1,-97.5,30.6", code=2)
    assert f"line 1 of {file} has more than {MAX_LINE} bytes" in answer.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_boxes_tile_the_domain_and_each_says_what_a_range_query_says_of_it(mechanism):
    release = json.loads(histogram_message("riders", mechanism).value)
    features = heat_of(read_histogram(release))
    rings = [feature["geometry"]["coordinates"][0] for feature in features]
    boxes = np.array([np.ravel([np.min(ring, axis=0), np.max(ring, axis=0)]) for ring in rings])
    west, south, east, north = boxes.T
    assert len(features) == MOST_PER_SIDE**2
    assert (west.min(), south.min(), east.max(), north.max()) == pytest.approx((-98.0, 30.0, -97.4, 30.6))
    assert np.sum((east - west) * (north - south)) == pytest.approx(0.36)
    for number in (0, 1000, 2080, 4095):
        one, box = features[number]["properties"], boxes[number]
        asked = count_in(release, tuple(box.tolist()))
        assert one["value"] == pytest.approx(max(asked["value"], 0.0), abs=0.01)
        assert [one["low"], one["high"]] == pytest.approx(asked["interval"], abs=1)
        assert one["low"] <= one["value"] <= max(one["high"], 0)
        square_km = (box[3] - box[1]) * (box[2] - box[0]) * 111.195**2 * np.cos(np.radians(30.3))
        assert one["density"] == pytest.approx(one["value"] / square_km, rel=2e-3, abs=1e-3)
