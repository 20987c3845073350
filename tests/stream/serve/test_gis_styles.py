"""The styles of config/gis, applied to the layers that a GIS reads from the service."""

from __future__ import annotations

import asyncio
import re
import shutil
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as Xml

import pyogrio
import pytest

from stream.local import REPO_ROOT
from stream.messages.lines import line_of
from tests.stream.serve.made_windows import with_histograms
from tests.stream.serve.serving import serving_file
from tests.support.builders import bus_config

SLD, OGC = "{http://www.opengis.net/sld}", "{http://www.opengis.net/ogc}"
SOURCES = REPO_ROOT / "stream" / "serve" / "dashboard" / "src"
ADDRESSES = {"hexagons": "OAPIF:{}ogc", "heat": "{}api/v1/heat?mechanism=ag"}
LAYERS = {"hexagons": ["bus.newest"], "heat": []}
OPERATORS = {"PropertyIsGreaterThanOrEqualTo": ">=", "PropertyIsLessThan": "<", "PropertyIsLessThanOrEqualTo": "<="}


def sql(part: Xml.Element) -> str:
    """A filter of a style in SQL."""
    tag, inside = part.tag.removeprefix(OGC), [sql(child) for child in part]
    if tag in ("PropertyName", "Literal"):
        return f'"{part.text}"' if tag == "PropertyName" else str(float(part.text or ""))
    between = {"And": " AND ", "Sub": " - "}.get(tag) or f" {OPERATORS[tag]} "
    return f"({between.join(inside)})"


def rules(name: str) -> dict[str, str]:
    """The colour of each rule, and for which features it is, in SQL."""
    listed = Xml.parse(REPO_ROOT / "config" / "gis" / f"{name}.sld").iter(f"{SLD}Rule")
    return {str(rule.findtext(f".//{SLD}CssParameter")): sql(rule.find(f"{OGC}Filter/*")) for rule in listed}  # type: ignore[arg-type]


def ramp(name: str) -> list[str]:
    (line,) = re.findall(rf"{name} = \[(.*)\]", (SOURCES / "palette.ts").read_text(encoding="utf-8"))
    return re.findall("#[0-9a-f]{6}", line)


@pytest.mark.skipif(shutil.which("ogr2ogr") is None, reason="no ogr2ogr; Debian: apt-get install gdal-bin")
@pytest.mark.parametrize("name", ["hexagons", "heat"])
async def test_every_feature_has_the_one_colour_of_its_value_and_what_is_unsure_is_fainter(
    tmp_path: Path, name: str
) -> None:
    messages, _ = with_histograms(tmp_path, {"feed.name": "bus"})
    (tmp_path / "releases.ndjson").write_text("".join(map(line_of, messages)), encoding="utf-8")
    read = tmp_path / "read.gpkg"
    async with serving_file(bus_config(tmp_path, **{"feed.name": "bus"}), tmp_path / "releases.ndjson") as client:
        command = ["ogr2ogr", str(read), ADDRESSES[name].format(client.make_url("/")), *LAYERS[name]]
        assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0

    def matching(where: str) -> int:
        return len(pyogrio.raw.read(read, where=where, columns=[], read_geometry=True)[2])

    *coloured, faint = rules(name).values()
    valued = matching('"estimate_mean" IS NOT NULL' if name == "hexagons" else '"density" >= 1')
    assert valued > 0
    assert sum(map(matching, coloured)) == valued
    assert matching(" OR ".join(coloured)) == valued, "no feature has two"
    assert matching(faint) > 0


def test_classes_and_colours_are_those_of_the_dashboard() -> None:
    viridis = ramp("VIRIDIS")
    hexagons, heat = rules("hexagons"), rules("heat")
    assert list(heat)[:-1] == ramp("YL_OR_RD")
    classes = len(hexagons) - 1
    assert list(hexagons)[:-1] == [viridis[round(at * 9 / (classes - 1))] for at in range(classes)]
    ends = [[float(end) for end in re.findall(r"= ?([\d.]+)|< ([\d.]+)", text)[0] if end] for text in hexagons.values()]
    (speeds,) = re.findall(r"SPEEDS = \{ 'km/h': \[([\d, ]+)\]", (SOURCES / "statistics.ts").read_text("utf-8"))
    assert [end for (end,) in ends[1:-1]] == [float(end) for end in speeds.split(",")][: classes - 1]
    assert all(a < b for (a,), (b,) in pairwise(ends[:-1]))
