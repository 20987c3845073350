"""An import never climbs: every room of ``stream`` stands on a floor, and imports its own floor or lower ones only."""

from __future__ import annotations

import ast
from pathlib import Path

from stream.local import REPO_ROOT

FLOORS = (
    {
        "config",
        "earth",
        "windows",
        "messages",
        "connection",
        "http_server",
        "metrics",
        "local",
        "logs",
        "server_version",
        "geojson",
        "route_order",
        "terms",
        "tiles",
    },
    {"storage", "ingestion", "statistics"},
    {"protocol", "sources", "serve"},
    {"app", "awaiting", "embedded", "offline", "evaluation", "diagnosis", "doctor"},
    {"cli"},
)
"""Rooms (folders and single files of ``stream``) from the ground up; ``dpcore`` is below all of them."""
PURE = {"statistics": {"redis", "aiokafka", "aiohttp", "faust", "time", "asyncio"}}
"""What a room must not import, whatever its floor."""


def imports_of(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def room_of(path: Path) -> str:
    parts = path.relative_to(REPO_ROOT / "stream").parts
    return parts[0].removesuffix(".py")


def sources() -> list[Path]:
    return [path for path in (REPO_ROOT / "stream").rglob("*.py") if "node_modules" not in path.parts]


def test_every_room_stands_on_one_floor() -> None:
    rooms = {room_of(path) for path in sources()} - {"__init__", "__main__"}
    assert rooms == set().union(*FLOORS)
    assert sum(map(len, FLOORS)) == len(rooms)


def test_no_import_climbs_to_a_higher_floor() -> None:
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    climbs = [
        f"{path.relative_to(REPO_ROOT)} imports {name}"
        for path in sources()
        if room_of(path) in floor
        for name in imports_of(path)
        if name.startswith("stream.") and floor[name.split(".")[1]] > floor[room_of(path)]
    ]
    assert not climbs, "\n".join(sorted(climbs))


def test_rooms_of_one_floor_import_each_other_in_one_direction() -> None:
    arrows = {
        (room_of(path), name.split(".")[1])
        for path in sources()
        for name in imports_of(path)
        if name.startswith("stream.") and name.split(".")[1] != room_of(path)
    }
    assert not {(a, b) for a, b in arrows if (b, a) in arrows and a < b}


def test_statistics_touch_no_server_and_no_clock() -> None:
    for room, forbidden in PURE.items():
        for path in (REPO_ROOT / "stream" / room).rglob("*.py"):
            assert not {name.split(".")[0] for name in imports_of(path)} & forbidden, path


def test_the_mathematics_import_nothing_of_the_service() -> None:
    for path in (REPO_ROOT / "dpcore").rglob("*.py"):
        outside = {name.split(".")[0] for name in imports_of(path)} & {"stream", "h3", "redis", "aiokafka"}
        assert not outside, path


def test_nothing_imports_research() -> None:
    for room in ("dpcore", "stream", "bench"):
        for path in (REPO_ROOT / room).rglob("*.py"):
            assert not any(name.split(".")[0] == "research" for name in imports_of(path)), path
