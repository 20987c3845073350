"""The configuration that the benchmarks run with."""

from __future__ import annotations

from typing import Any

from stream.config import Config

_SECTIONS: dict[str, dict[str, Any]] = {
    "feed": {"name": "bench", "topic": "bench.positions", "format": "canonical", "timezone": "UTC"},
    "privacy": {"epsilon": 2.0, "budget": 48.0},
    "hexagons": {"resolution": 7},
    "value": {"upper": 65.0},
    "kafka": {"group": "bench"},
}


def bench_config(**sections: dict[str, Any]) -> Config:
    """Relation "values", ε = 2; the keys of ``sections`` are added to it or replace its own."""
    names = _SECTIONS.keys() | sections.keys()
    return Config.model_validate(
        {"relation": "values"} | {name: _SECTIONS.get(name, {}) | sections.get(name, {}) for name in names}
    )
