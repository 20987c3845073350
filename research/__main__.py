"""``python -m research NAME [--quick] [--plot FOLDER]``: run one study and print its figures as JSON."""

from __future__ import annotations

import argparse
import json
import pkgutil
from importlib import import_module
from pathlib import Path

import research
from research import papers

STUDIES = sorted(
    {module.name for module in pkgutil.iter_modules(research.__path__)}
    - {"__main__", "live_bounds", "live_feeds", "spatial_grids"}
    | {f"papers.{part}" for part in papers.PARTS}
)
"""Names of all studies."""


def main() -> None:
    """Run the study that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m research", description="Runs one study; prints its figures.")
    parser.add_argument("name", choices=STUDIES, metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--quick", action="store_true", help="small sizes, which take seconds and are not to be quoted")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw the figures there, where the study draws")
    chosen = parser.parse_args()
    study = import_module(f"research.{chosen.name}")
    if chosen.plot and not hasattr(study, "plot"):
        parser.error(f"{chosen.name} draws nothing")
    figures = study.run(chosen.quick)
    print(json.dumps({"study": chosen.name, "quick": chosen.quick} | figures, indent=2))
    if chosen.plot:
        study.plot(figures, chosen.plot)


if __name__ == "__main__":
    main()
