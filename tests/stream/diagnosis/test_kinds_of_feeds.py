"""The traps that real feeds have: what ``inspect`` says of each, and that ``replay --offline`` takes the same events.

Twenty vehicles drive straight for ten minutes, with a fix every 30 s; all is good but for the trap.
"""

import csv
import json
import math
import random
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToDict

from stream.diagnosis.inspection import configuration
from stream.diagnosis.reading import InspectionError
from stream.local.kafka import REPO_ROOT
from tests.stream.sources.agency import feed_message
from tests.support.command import run
from tests.support.inspecting import inspected

START, N = datetime(2017, 3, 21, 12, tzinfo=UTC), 420
BUS = REPO_ROOT / "config" / "bus-fleet.toml"
Row = dict[str, Any]


def fixes() -> list[Row]:
    draw, rows = random.Random(3), []
    fleet = [
        (f"bus-{n}", 30.2 + draw.random() / 10, draw.random() / 10 - 97.8, 12 + 30 * draw.random()) for n in range(20)
    ]
    for tick in range(21):
        moment = (START + timedelta(seconds=30 * tick)).isoformat().replace("+00:00", "Z")
        for name, lat, lng, speed in fleet:
            north = round(lat + speed / 3.6 * 30 * tick / 111_195, 6)
            rows.append({"user": name, "time": moment, "lat": north, "lng": round(lng, 6), "speed": round(speed, 2)})
    return rows


ROWS = fixes()


def ndjson(path: Path, rows: Iterable[Row], before: str = "") -> Path:
    path.write_text(before + "".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, rows: list[Row], encoding: str = "utf-8", before: str = "") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        file.write(before)
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def changed(**changes: Callable[[int, Row], Any]) -> list[Row]:
    return [row | {name: change(n, row) for name, change in changes.items()} for n, row in enumerate(ROWS)]


def renamed(names: dict[str, str], **first: Callable[[int], Any]) -> list[Row]:
    return [
        {name: make(n) for name, make in first.items()} | {names.get(name, name): value for name, value in row.items()}
        for n, row in enumerate(ROWS)
    ]


def lines(**changes: Callable[[int, Row], Any]) -> Callable[[Path], Path]:
    """What writes the rows with other fields as JSON."""
    return lambda path: ndjson(path, changed(**changes))


def cells(**changes: Callable[[int, Row], Any]) -> Callable[[Path], Path]:
    """What writes the rows with other fields as a table."""
    return lambda path: table(path, changed(**changes))


def snapshots(
    folder: Path, factor: float = 1 / 3.6, ahead: int = 0, *, longitude: bool = True, as_json: bool = False
) -> Path:
    folder.mkdir()
    for tick in range(21):
        seconds, rows = int(START.timestamp()) + 30 * tick, ROWS[20 * tick : 20 * tick + 20]
        buses = [(row["user"], seconds + ahead, row["lat"], row["lng"], row["speed"] * factor) for row in rows]
        message = feed_message(buses, seconds)
        for entity in () if longitude else message.entity[::4]:
            entity.vehicle.position.ClearField("longitude")
        body = message.SerializePartialToString()
        if as_json:
            tree = MessageToDict(message)
            tree["entity"][0]["vehicle"]["occupancyStatus"] = "CROWDED_BEYOND_2027"
            body = json.dumps(tree).encode()
        (folder / f"{tick:02}").write_bytes(body)
    return folder


def feature(row: Row) -> Row:
    return {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": [row["lng"], row["lat"]]},
        "properties": {name: row[name] for name in ("user", "time", "speed")},
    }


def documented(path: Path, tree: object) -> Path:
    path.write_text(json.dumps(tree))
    return path


def parquet(path: Path, **kinds: Any) -> Path:
    pq.write_table(pa.table({name: pa.array([row[name] for row in ROWS], kinds.get(name)) for name in ROWS[0]}), path)
    return path


def local(form: str) -> Callable[[int, Row], str]:
    return lambda n, row: datetime.fromisoformat(row["time"]).strftime(form)


PORTUGUESE = {"user": "codigo", "time": "timestamp", "lat": "latitude", "lng": "longitude", "value": "velocidade"}
SPANISH = ("id_unidad", "fecha_hora", "latitud", "longitud", "velocidad")
GERMAN = ("Fahrzeug-Nr", "Zeitstempel", "Breitengrad", "Längengrad", "Geschwindigkeit")
EACH_SECOND = [
    {"license_plate": f"b{k}", "observationDateTime": (START + timedelta(seconds=n)).isoformat(),
     "location": {"coordinates": [-97.7, 30.2 + 10 * n / 111_195]}, "speed": 10}
    for n in range(120) for k in range(20)
]  # fmt: skip
NAMES_OF_GERMANY = renamed(dict(zip(ROWS[0], GERMAN, strict=True)))
NAMES_WITH_UNITS = renamed({"time": "Timestamp (UTC)", "lat": "Latitude [deg]", "speed": "Speed (km/h)"})
ATTRIBUTES = [
    {"attributes": feature(row)["properties"], "geometry": {"x": row["lng"], "y": row["lat"]}} for row in ROWS
]
STRAY = ROWS[0] | {"user": "bus-99", "lat": 0.7}
KINDS: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "the field `id` counts rows": (
        lambda p: table(p, renamed(PORTUGUESE, id=lambda n: n + 1)), N, "'codigo' is taken for the user",
    ),
    "an identifier of messages": (
        lambda p: ndjson(p, renamed({"user": "vehicleCode"}, messageId=lambda n: f"{n:08x}")), N,
        "'vehicleCode' is taken for the user",
    ),
    "km/h in snapshots": (lambda p: snapshots(p, factor=1), N, "set feed.speed_unit = 'km/h'"),
    "mph in snapshots": (lambda p: snapshots(p, factor=1 / 1.609344), N, "set feed.speed_unit = 'mph'"),
    "local time sent as UTC": (
        lambda p: snapshots(p, ahead=3600), 0, "1 h ahead of the snapshot's own time: local time sent as UTC?",
    ),
    "half an hour behind": (
        lambda p: snapshots(p, ahead=-1800), N, "30 min behind the snapshot's own time: local time sent as UTC?",
    ),
    "no longitude": (lambda p: snapshots(p, longitude=False), 315, "105 of 420 events are refused as no-position"),
    "an unknown enum": (lambda p: snapshots(p, as_json=True), N, ""),
    "Latin-1": (
        lambda p: table(p, renamed({}, headsign=lambda n: "Praça"), "latin-1"), N, "not UTF-8: it is read as cp1252",
    ),
    "Latin-1 in the user": (
        lambda p: table(p, changed(user=lambda n, row: "ônibus" + row["user"]), "latin-1"), N, "by feed.encoding",
    ),
    "UTF-16": (lambda p: table(p, ROWS, "utf-16"), N, "it is read as utf-16"),
    "empty speeds": (cells(speed=lambda n, row: "" if n % 2 else row["speed"]), 410, "50% of the fixes have no speed"),
    "speeds of N/A": (cells(speed=lambda n, row: "N/A" if n % 2 else row["speed"]), 410, "50% of the fixes have no"),
    "half without a zone": (
        cells(time=lambda n, row: row["time"] if n % 2 else row["time"][:-1]), N, "50% of the times have no zone",
    ),
    "day first": (cells(time=local("%d/%m/%Y %H:%M:%S")), N, "The times have no zone"),
    "month first, with AM": (cells(time=local("%m/%d/%Y %I:%M:%S %p")), N, "The times have no zone"),
    "a leap second": (lines(time=lambda n, row: row["time"] if n else "2016-12-31T23:59:60Z"), N, ""),
    "numbers in texts": (lines(**{k: lambda n, row, k=k: str(row[k]) for k in ("lat", "lng", "speed")}), N, ""),
    "decimal commas": (
        lines(**{k: lambda n, row, k=k: str(row[k]).replace(".", ",") for k in ("lat", "lng", "speed")}), N, "",
    ),
    "degrees x 10^7": (
        lines(**{k: lambda n, row, k=k: round(row[k] * 1e7) for k in ("lat", "lng")}), N, "degrees times 10000000",
    ),
    "a byte order mark": (lambda p: ndjson(p, ROWS, "\ufeff"), N, ""),
    "a list in a document": (lambda p: documented(p, {"result": {"records": ROWS}}), N, ""),
    "GeoJSON": (lambda p: documented(p, {"type": "FeatureCollection", "features": [*map(feature, ROWS)]}), N, ""),
    "ArcGIS": (lambda p: documented(p, {"fields": [{"name": "user"}], "features": ATTRIBUTES}), N, ""),
    "string_view": (lambda p: parquet(p, user=pa.string_view()), N, ""),
    "a dictionary": (lambda p: parquet(p, user=pa.dictionary(pa.int32(), pa.string())), N, ""),
    "a stray fix": (lambda p: ndjson(p, [*ROWS, STRAY]), N, "1 of 421 fixes lie far from the others"),
    "a stray fix of few": (lambda p: ndjson(p, [*ROWS[:40], STRAY]), 40, "lie far from the others"),
    "across 180 degrees": (lines(lng=lambda n, row: round((row["lng"] + 97.75 + 360) % 360 - 180, 6)), N, ""),
    "faster than the bound": (lines(speed=lambda n, row: 3 * row["speed"]), 400, "are above value.upper"),
    "names of Spain, local times": (lambda p: table(p, renamed(dict(zip(ROWS[0], SPANISH, strict=True)))), N, ""),
    "names of Germany, as spreadsheets write them": (
        lambda p: table(p, NAMES_OF_GERMANY, before="sep=,\n# exported\n"), N, "",
    ),
    "names with units": (lambda p: table(p, NAMES_WITH_UNITS), N, ""),
    "degrees x 10^6": (
        lines(lat=lambda n, row: round(row["lat"] * 1e6), lng=lambda n, row: 85_300_000 + n), N,
        "degrees times 1000000 or 10000000",
    ),
    "times that name UTC": (lines(time=local("%Y-%m-%d %H:%M:%S UTC")), N, ""),
    "times of .NET": (
        lines(time=lambda n, row: f"/Date({1490097600000 + n})/"), 0,
        "times are numbers in /Date(…)/: send the number alone",
    ),
    "times without a date": (lines(time=local("%H:%M:%S")), 0, "send date and time in one"),
    "lists in lists": (
        lambda p: documented(p, {"lines": [{"name": n, "vehicles": ROWS[n::7]} for n in range(7)]}), N, "",
    ),
    "two units of speed": (
        lines(speed=lambda n, row: row["speed"] / (3.6 if n % 20 < 8 else 1)), N,
        "The speeds of 40% of the vehicles fit their positions in another unit",
    ),
    "a fix every second": (lambda p: ndjson(p, EACH_SECOND), 2400, "The speeds agree with positions in m/s and not"),
    "placeholders": (
        lines(user=lambda n, row: "null" if n % 2 else " " if n % 20 == 0 else row["user"]), 399,
        "name their user 'null'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_a_trap_is_what_the_service_does(kind, tmp_path, monkeypatch):
    """Also: the configuration that is written releases exactly the events that are called usable, and nothing quotes a
    row."""
    monkeypatch.chdir(tmp_path)
    make, usable, says = KINDS[kind]
    path = make(tmp_path / "feed")
    report = inspected(path)
    assert report.usable == usable, report.refused
    assert says in " ".join(report.problems)
    assert not re.search(r"bus-\d|30\.\d{4}", " ".join(report.problems))
    if not report.suggestions:
        return
    template = BUS.read_text(encoding="utf-8")
    Path("c.toml").write_text(configuration(template, report.suggestions, report.config.relation), encoding="utf-8")
    options = ("--offline", "--config", "c.toml", "--out", "r.ndjson", "--json")
    summary = json.loads(run(report.seen.command.split()[1], path, *options).stdout)
    assert summary["events"] == usable
    assert summary["refused"] == {why: count for why, count in report.refused.items() if why in summary["refused"]}


def test_a_field_that_names_events_is_no_user_in_any_command_unless_it_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEXVEIL_WINDOW__LATENESS", "event-time")
    path = ndjson(tmp_path / "day.ndjson", changed(user=lambda n, row: f"event-{n}"))
    config = ("--config", BUS)
    want = ("--want", "+-8 km/h for 80 % of events", "--draws", 1, "--resolutions", 6, "--slots", "3h")
    for command in (
        ("replay", path, "--offline", "--out", "r.ndjson"),
        ("replay", path),
        ("evaluate", path, "--trials", 1),
        ("tune", path, *want),
        ("check", path),
    ):
        refused = run(*command, *config, code=2)
        assert "is no user: 100.0% of its values in 420 events occur once" in refused.stderr.replace("\n", " ")
    run("replay", path, "--offline", "--out", "r.ndjson", "--yes-users-are-events", *config)
    assert "is no user" in run("inspect", path, code=2).stderr


def test_snapshots_whose_identifiers_name_events_are_refused_and_one_snapshot_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(globals(), "ROWS", changed(user=lambda n, row: f"event-{n}"))
    path, config = snapshots(tmp_path / "s"), ("--config", BUS)
    offline = ("--offline", "--out", "r.ndjson", "--force")
    for command in (("gtfs-rt", path, *offline), ("evaluate", path, "--trials", 1), ("check", path)):
        refused = run(*command, *config, code=2)
        assert "is no user: 100.0% of its values" in refused.stderr.replace("\n", " ")
    assert "is no user" in " ".join(inspected(path).problems)
    run("gtfs-rt", path, "--yes-users-are-events", *offline, *config)
    run("gtfs-rt", path / "00", *offline, *config)


def test_an_object_whose_names_may_be_users_is_refused_without_a_name(tmp_path):
    path = documented(tmp_path / "day", {f"bus-{n}": row for n, row in enumerate(ROWS)})
    with pytest.raises(InspectionError, match="stand in an object, under names that may be those of users") as refused:
        inspected(path)
    assert "bus-" not in str(refused.value)


def test_one_snapshot_as_a_table_has_each_vehicle_once_and_is_not_refused(tmp_path):
    rows = [ROWS[0] | {"user": f"bus-{n}", "lat": 30.2 + n / 1e4} for n in range(200)]
    assert inspected(ndjson(tmp_path / "moment.ndjson", rows)).measures.vehicles == 200


def test_local_times_that_claim_utc_are_read_in_the_zone_that_is_set(tmp_path, monkeypatch):
    """Clocks of Berlin, in March an hour ahead: by recordings and by snapshots alike."""
    monkeypatch.setenv("HEXVEIL_FEED__TIMES_ZONE", "Europe/Berlin")
    monkeypatch.chdir(tmp_path)
    ahead = changed(time=lambda n, row: (datetime.fromisoformat(row["time"]) + timedelta(hours=1)).isoformat())
    offline = ("--offline", "--config", BUS, "--out", "r.ndjson", "--force", "--json")
    for command in (("gtfs-rt", snapshots(tmp_path / "s", ahead=3600)), ("replay", ndjson(tmp_path / "d", ahead))):
        done = run(*command, *offline)
        summary = json.loads(done.stdout)
        assert (summary["events"], summary["windows"]) == (N, ["2017-03-21T11:00:00Z"]), done.stderr


def test_a_ragged_row_is_named_by_its_columns_and_not_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path / "day.csv", ROWS)
    text = path.read_text().splitlines()
    path.write_text("\n".join([*text[:18], "secret,1,2,3", *text[18:]]))
    done = run("replay", path, "--offline", "--config", BUS, "--out", "r.ndjson")
    assert "1 missing-field, like row 17: 4 of 5 columns" in done.stderr
    assert "secret" not in done.output
    path.write_text("\n".join([*text[:18], '"a"\r0', *text[18:]]), newline="")
    assert dict(inspected(path).refused) == {"missing-field": 1}


def test_a_suggested_domain_across_180_degrees_holds_the_fleet_and_no_other_longitude(tmp_path):
    report = inspected(KINDS["across 180 degrees"][0](tmp_path / "day"))
    domain = report.config.feed.domain
    assert domain.crosses_180
    assert domain.contains(30.25, 179.99)
    assert domain.contains(30.25, -179.99)
    assert not domain.contains(30.25, 0.0)
    assert math.isclose(domain.unrolled_east - domain.west, 0.5, abs_tol=0.2)
