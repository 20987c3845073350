"""Archives of timetables (GTFS schedules) with odd values in their tables, and with mutated bytes."""

from __future__ import annotations

import io
import random
import zipfile

import numpy as np

from bench.fuzzing.hunting import FolderTarget, Hunt
from bench.fuzzing.mutation import NUMBERS, TEXTS, Mutator
from stream.config.section import BoundingBox
from stream.sources.places import as_area, as_table, places
from stream.sources.schedule import ScheduleError, read_schedule
from stream.sources.scheduled_speed import scheduled_speeds
from stream.sources.timetable import read_timetable

_DOMAIN = BoundingBox(south=29.8, west=-98.3, north=30.9, east=-97.2)
_MOST = 1e12
_RESOLUTION = 5
"""Coarse, because odd coordinates make lines across the whole domain."""
_TABLES = {
    "agency": ["agency_name,agency_url,agency_timezone", "A,http://a.example,America/Chicago"],
    "stops": ["stop_id,stop_name,stop_lat,stop_lon,location_type"]
    + [f"{n},Street {n},{30.2 + n / 100},{-97.7 - n / 100},0" for n in range(8)],
    "routes": ["route_id,route_short_name,route_long_name,route_type", "r1,10,Lamar,3", "r2,,Rail,2"],
    "trips": ["route_id,service_id,trip_id,shape_id", "r1,w,t1,s1", "r1,w,t2,", "r2,e,t3,gone"],
    "stop_times": ["trip_id,arrival_time,departure_time,stop_id,stop_sequence"]
    + [f"t{trip},{7 + n // 6:02}:{n * 7 % 60:02}:00,{7 + n // 6:02}:{n * 7 % 60:02}:20,{n},{n}" for trip in (1, 2,
    3) for n in range(8)],
    "shapes": ["shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence"]
    + [f"s1,{30.2 + n / 200},{-97.7 - n / 200},{n}" for n in range(16)],
    "calendar": [
        "service_id,monday,tuesday,wednesday,thursday,friday,saturday,sunday,start_date,end_date",
        "w,1,1,1,1,1,0,0,20160821,20170121",
    ],
    "calendar_dates": ["service_id,date,exception_type", "e,20161225,1", "w,20161226,2"],
    "frequencies": ["trip_id,start_time,end_time,headway_secs", "t2,07:00:00,09:00:00,600"],
}  # fmt: skip


class Timetables(FolderTarget):
    """Archives: one in two with odd cells, one in two with mutated bytes."""

    name = "gtfs"
    contract = "a ScheduleError, or places, areas and scheduled speeds"

    def round(self, hunt: Hunt, rng: random.Random) -> None:
        """Twelve archives."""
        mutator = Mutator(rng)
        for _ in range(12):
            tables = {name: [self._row(rng, row) for row in rows] for name, rows in _TABLES.items()}
            body = _archive(
                rng, {name: "\n".join(rows).encode("utf-8", "surrogatepass") for name, rows in tables.items()}, mutator
            )
            hunt.attempt(body, self._check)

    @staticmethod
    def _row(rng: random.Random, row: str) -> str:
        if rng.random() < 0.9:
            return row
        cells = row.split(",")
        odd = rng.choice(NUMBERS).decode() if rng.random() < 0.6 else rng.choice(TEXTS)
        cells[rng.randrange(len(cells))] = odd
        return ",".join(cells)

    def _check(self, body: bytes) -> None:
        path = self.folder / "gtfs.zip"
        path.write_bytes(body)
        try:
            chart = places(read_schedule(path), _DOMAIN, _RESOLUTION)
            as_area(chart)
            with np.errstate(invalid="raise"):
                table = scheduled_speeds(read_timetable(path), _DOMAIN, _RESOLUTION).table()
            as_table(chart, table)
        except ScheduleError:
            return
        for cell in table["cells"]:
            assert all(0 < metres < _MOST and 0 < seconds < _MOST for _, _, metres, seconds in cell["hours"])


def _archive(rng: random.Random, tables: dict[str, bytes], mutator: Mutator) -> bytes:
    """A zip of the tables, of which one may be left out or have mutated bytes; its own bytes may be mutated."""
    name = rng.choice(list(tables))
    if rng.random() < 0.2:
        del tables[name]
    elif rng.random() < 0.5:
        tables[name] = mutator.octets(tables[name])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, text in tables.items():
            archive.writestr(f"{name}.txt", text)
    return mutator.octets(out.getvalue()) if rng.random() < 0.4 else out.getvalue()
