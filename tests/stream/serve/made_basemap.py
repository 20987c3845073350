"""The street map that the documented command makes of an extract of OpenStreetMap."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyogrio

from stream.local import REPO_ROOT
from tests.docs.pages import blocks

PAGE = REPO_ROOT / "docs" / "dashboard.md"


def street_map(folder: Path, ways: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """The archive, of roads by their tag ``highway``: latitude and longitude of their corners."""
    (folder / "city.osm").write_text(_extract(ways), encoding="utf-8")
    (text,) = (block.text for block in blocks(PAGE) if block.text.startswith("ogr2ogr -f PMTiles"))
    command = shlex.split(text.replace("city.osm.pbf", "city.osm").replace("\\\n", ""))
    if _writes_archives():
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    else:  # GDAL below 3.8: what the same options mean to the library of Python's GDAL
        _written_by_python(folder, command)
    return folder / "city.pmtiles"


def _extract(ways: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    corners = [corner for way in ways.values() for corner in way]
    lines = [f'<node id="{at}" lat="{lat}" lon="{lng}"/>' for at, (lat, lng) in enumerate(corners, 1)]
    last = 0
    for number, (kind, way) in enumerate(ways.items(), 1):
        nodes = "".join(f'<nd ref="{at}"/>' for at in range(last + 1, last + 1 + len(way)))
        lines.append(f'<way id="{number}">{nodes}<tag k="highway" v="{kind}"/></way>')
        last += len(way)
    return f'<osm version="0.6">{"".join(lines)}</osm>'


def _writes_archives() -> bool:
    known = shutil.which("ogr2ogr") and subprocess.run(["ogr2ogr", "--formats"], capture_output=True, text=True).stdout
    return "PMTiles" in (known or "")


def _written_by_python(folder: Path, command: Sequence[str]) -> None:
    assert command[:5] == ["ogr2ogr", "-f", "PMTiles", "city.pmtiles", "city.osm"]
    names, values = command[5::2], command[6::2]
    options = dict(value.split("=") for name, value in zip(names, values, strict=True) if name == "-dsco")
    said = {name: value for name, value in zip(names, values, strict=True) if name != "-dsco"}
    assert set(said) == {"-sql", "-nln"}
    meta, _, shapes, columns = pyogrio.raw.read(folder / "city.osm", sql=said["-sql"])
    pyogrio.raw.write(
        folder / "city.pmtiles",
        shapes,
        columns,
        meta["fields"],
        layer=said["-nln"],
        driver="PMTiles",
        geometry_type=meta["geometry_type"],
        crs=meta["crs"],
        dataset_options=options,
    )
