"""A small timetable of Austin with the faults of real ones."""

import io
import zipfile
from pathlib import Path

from stream.config.section import BoundingBox

AUSTIN = BoundingBox(south=29.8, west=-98.3, north=30.9, east=-97.2)
FILES = {
    "stops.txt": "\ufeff\"stop_id\",stop_name,stop_lat,stop_lon\n"
    "1,Congress / 6th,30.2682,-97.7429\n2,Congress / 6th,30.2684,-97.7427\n3,\"Lamar, North\",30.3200,-97.7300\n"
    "4,nowhere,0,0\n5,wrong,130.3,-97.7\n6,none,,\n7,London,51.5,-0.12\n",
    "routes.txt": "route_id,route_short_name,route_long_name\nr1,10,Lamar\nr2,2,\nr3,,Airport\n",
    "trips.txt": "route_id,trip_id,shape_id\nr1,t1,s1\nr2,t2,s1\nr3,t3,\nr3,t4,gone\nr9,t5,s1\n",
    "shapes.txt": "shape_id,shape_pt_lat,shape_pt_lon,shape_pt_sequence\n"
    "s1,30.3200,-97.7300,20\ns1,30.2682,-97.7429,3\ns1,999,0,4\ns2,30,-97,1\n",
    "stop_times.txt": "trip_id,stop_id,stop_sequence\nt3,3,2\nt3,1,1\nt3,4,3\nt1,1,1\n",
}  # fmt: skip


def zipped(files: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", method) as out:
        for name, text in files.items():
            out.writestr(name, text)
    return body.getvalue()


def archive(path: Path, files: dict[str, str | bytes] | None = None) -> Path:
    path.write_bytes(zipped(dict(FILES) if files is None else files))
    return path
