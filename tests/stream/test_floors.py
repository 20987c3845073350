"""An import never climbs: every room of ``stream`` stands on a floor, and imports its own floor or lower ones only."""

import ast
from functools import cache
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from stream.config import Config
from stream.config.loading import fields_of, section_of
from stream.local.kafka import REPO_ROOT

FLOORS = (
    {"config", "windows", "messages", "http_server", "metrics", "local", "logs", "servers", "terms"},
    {"storage", "ingestion", "statistics"},
    {"protocol", "sources", "serve"},
    {"app", "embedded", "offline", "evaluation", "diagnosis"},
    {"cli"},
)
"""Rooms (folders and single files of ``stream``) from the ground up; ``dpcore`` is below all of them."""
PURE = {
    "stream/statistics": {"redis", "aiokafka", "aiohttp", "faust", "time", "asyncio"},
    "dpcore": {"stream", "h3", "redis", "aiokafka", "research"},
    "stream": {"research"},
    "stream/serve": {"redis", "stream.metrics", *(f"stream.{room}" for room in (*FLOORS[1], "protocol"))},
    "bench": {"research"},
}
"""What a folder must not import, whatever its floor."""


@cache
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


def test_every_room_stands_on_one_floor():
    rooms = {room_of(path) for path in sources()} - {"__init__", "__main__"}
    assert rooms == set().union(*FLOORS)
    assert sum(map(len, FLOORS)) == len(rooms)


def test_no_import_climbs_to_a_higher_floor():
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    climbs = [
        f"{path.relative_to(REPO_ROOT)} imports {name}"
        for path in sources()
        if room_of(path) in floor
        for name in imports_of(path)
        if name.startswith("stream.") and floor[name.split(".")[1]] > floor[room_of(path)]
    ]
    assert not climbs, "\n".join(sorted(climbs))


MOST_ROOMS, MOST_ARROWS = 21, 106
"""As measured; a change that lowers them lowers these numbers, too."""


def arrows() -> set[tuple[str, str]]:
    """Which room imports which other one."""
    return {
        (room_of(path), name.split(".")[1])
        for path in sources()
        for name in imports_of(path)
        if name.startswith("stream.") and name.split(".")[1] != room_of(path)
    }


def test_rooms_and_the_arrows_between_them_do_not_become_more():
    rooms = set().union(*FLOORS)
    assert len(rooms) <= MOST_ROOMS
    assert len({arrow for arrow in arrows() if set(arrow) <= rooms}) <= MOST_ARROWS


def circle_of(modules: dict[str, set[str]]) -> list[str]:
    """Some modules that import each other in a circle, or none. ``modules``: the imports of each."""
    left = {name: imports & modules.keys() for name, imports in modules.items()}
    while leaves := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in leaves:
            del left[name]
    return sorted(left)


def test_no_module_is_in_a_circle_of_imports():
    """What is only needed by a type checker counts, too: whoever reads one file then reads the other."""

    def name_of(path: Path) -> str:
        return ".".join(path.relative_to(REPO_ROOT).with_suffix("").parts).removesuffix(".__init__")

    modules = {name_of(path): imports_of(path) - {name_of(path)} for path in sources()}
    assert circle_of(modules) == []
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"], "a planted circle is noticed"


def test_rooms_of_one_floor_import_each_other_in_one_direction():
    both = arrows()
    assert not {(a, b) for a, b in both if (b, a) in both and a < b}


def test_statistics_touch_no_server_and_no_clock_the_public_service_nothing_inside_and_nobody_imports_research():
    for folder, forbidden in PURE.items():
        for path in (REPO_ROOT / folder).rglob("*.py"):
            modules = [name for name in imports_of(path) for bad in forbidden if f"{name}.".startswith(f"{bad}.")]
            assert not modules, path


MOST_KEYS = 126
"""Keys of a configuration, with those of a rule on alerts."""


def test_keys_of_a_configuration_do_not_become_more():
    assert len(leaves(Config)) <= MOST_KEYS, "whoever adds a key says who turns it, and takes another away"
    assert {"privacy.budget", "public.alerts.area.south", "histogram.preset"} <= set(leaves(Config))


def leaves(section: type[BaseModel], before: str = "") -> list[str]:
    """Dotted names of all keys that are no sections."""
    names: list[str] = []
    for name, field in fields_of(section).items():
        inner = section_of(field.annotation) or next(filter(None, map(section_of, get_args(field.annotation))), None)
        names += [before + name] if inner is None else leaves(inner, f"{before}{name}.")
    return names
