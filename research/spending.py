"""Measures what ε buys: the error of means against ε, and what pacing does with a budget that is too small. NOT
PRIVATE.

Errors are those of ``hexveil evaluate``, weighted by events, over all windows of a day. Under "before", each user's ε
is shared evenly over their cells, nothing is clipped further and nothing modelled; under "after" it is spent as the
service spends it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.defaults import config_of, recording_of
from bench.progress import shown
from bench.recordings import absent
from dpcore.contributions import Counts
from stream.config import Config
from stream.evaluation.evaluate import evaluate, planned_windows, with_epsilon, with_speed
from stream.evaluation.leading import Windows
from stream.evaluation.scores import Score
from stream.statistics.merging import by_planned_cells

RELATIONS = {"values": "bus-fleet", "participation": "riders"}
"""Relation, and the configuration that has it."""
ESTIMATORS = {"before_km_h": "before", "released_km_h": "after", "modelled_km_h": "after, modelled"}
PLAIN: dict[str, Any] = {"allocation": "uniform", "clipping": "none", "sum_cap": 0.0, "suppression": "none"}
"""Settings of [speed] under "before"."""


@dataclass(frozen=True)
class Sizes:
    """Feeds and settings of :mod:`bench.defaults`, ε of one window, and draws of each. ``budgets``: in grants of a
    window."""

    feeds: tuple[str, ...]
    maps: tuple[str, ...]
    epsilons: tuple[float, ...]
    trials: int
    budgets: tuple[int, ...]


FULL = Sizes(("2016-11-26", "2017-03-21", "fleet of 541"), ("hourly",), (0.1, 0.25, 0.5, 1.0, 2.0, 4.0), 3, (4, 8, 16))
QUICK = Sizes(("dense and slow",), ("hourly",), (0.5, 2.0), 1, (2,))


def run(quick: bool) -> dict[str, Any]:
    """Mean absolute errors by relation, feed, map and ε; and released shares of the events of each window under a short
    budget."""
    sizes = QUICK if quick else FULL
    days = [f"capmetro/{feed}.csv.gz" for feed in sizes.feeds if feed[0].isdigit()]
    if missing := absent(*days):
        return {"skipped": missing}
    cases = [(relation, feed, name) for relation in RELATIONS for feed in sizes.feeds for name in sizes.maps]
    errors = [entry for case in shown(cases, "error by epsilon") for entry in _errors(*case, sizes)]
    paced = [
        _day(relation, feed, grants, admission, sizes.trials)
        for relation in RELATIONS
        for feed in sizes.feeds[:1]
        for grants in sizes.budgets
        for admission in ("first-come", "paced")
    ]
    return {"errors": errors, "short_budgets": paced}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``error-by-epsilon.svg``: a row for each relation, a column for each map; ``short-budgets.svg``: events by
    window."""
    from matplotlib.figure import Figure

    rows = figures["errors"]
    maps = list(dict.fromkeys(row["map"] for row in rows))
    sheet = Figure(figsize=(5 * len(maps), 7), layout="constrained")
    grid = sheet.subplots(len(RELATIONS), len(maps), sharex=True, squeeze=False)
    for axes, (relation, map_name) in zip(grid.flat, itertools.product(RELATIONS, maps), strict=True):
        chosen = [row for row in rows if (row["relation"], row["map"]) == (relation, map_name)]
        for colour, feed in enumerate(dict.fromkeys(row["feed"] for row in chosen)):
            of_feed = [row for row in chosen if row["feed"] == feed]
            for (name, label), style in zip(ESTIMATORS.items(), (":", "--", "-"), strict=True):
                values = [row[name] for row in of_feed]
                axes.plot(
                    [row["epsilon"] for row in of_feed], values, style, color=f"C{colour}", label=f"{feed}, {label}"
                )
        axes.set(xscale="log", yscale="log", title=f"{relation}, {map_name} settings", xlabel="ε of a window")
    grid[0, 0].set_ylabel("mean absolute error, km/h")
    grid[0, 0].legend(fontsize=7)
    sheet.savefig(folder / "error-by-epsilon.svg")
    sheet = Figure(figsize=(10, 4), layout="constrained")
    for axes, relation in zip(sheet.subplots(1, len(RELATIONS), sharey=True), RELATIONS, strict=True):
        for row in figures["short_budgets"]:
            if row["relation"] == relation:
                style = "-" if row["admission"] == "paced" else ":"
                axes.plot(
                    row["events_counted_percent"],
                    style,
                    label=f"{row['windows_paid']} windows paid, {row['admission']}",
                )
        axes.set(title=relation, xlabel="window of the day", ylim=(0, 105))
    sheet.axes[0].set_ylabel("events that count, %")
    sheet.axes[0].legend(fontsize=7)
    sheet.savefig(folder / "short-budgets.svg")


def _errors(relation: str, feed: str, map_name: str, sizes: Sizes) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(RELATIONS[relation], map_name, feed, Path(folder))
        windows = recording_of(feed).windows(config)
    for epsilon in sizes.epsilons:
        spent = with_epsilon(config, epsilon)
        before = evaluate(with_speed(spent, **PLAIN), windows, sizes.trials)
        after = evaluate(spent, windows, sizes.trials)
        yield {
            "relation": relation,
            "feed": feed,
            "map": map_name,
            "epsilon": epsilon,
            "budget": spent.privacy.budget,
            "before_km_h": _mae(before, "released"),
            "released_km_h": _mae(after, "released"),
            "modelled_km_h": _modelled(after),
        }


def _mae(scores: list[Score], estimator: str) -> float | None:
    error = next(s.mae for s in scores if (s.statistic, s.estimator) == ("mean", estimator))
    return None if error is None else round(error, 3)


def _modelled(scores: list[Score]) -> float | None:
    errors = [s.mae for s in scores if s.statistic == "mean" and s.estimator != "released" and s.mae is not None]
    return round(errors[-1], 3) if errors else None


def _day(relation: str, feed: str, grants: int, admission: str, trials: int) -> dict[str, Any]:
    """An hourly day with a budget of so many grants: which share of the events of each window is released, and its
    error."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(RELATIONS[relation], "hourly", feed, Path(folder))
        windows = recording_of(feed).windows(config)
    privacy = config.privacy.model_dump(by_alias=True) | {
        "admission": admission,
        "budget": grants * config.privacy.epsilon,
    }
    config = config.model_copy(update={"privacy": type(config.privacy)(**privacy)})
    shares = list(_shares(config, windows))
    scores = evaluate(config, windows, trials)
    return {
        "relation": relation,
        "feed": feed,
        "windows_paid": grants,
        "admission": admission,
        "events_counted_percent": [round(100 * share, 1) for share in shares],
        "dark_windows": sum(share < 0.05 for share in shares),
        "released_km_h": _mae(scores, "released"),
        "modelled_km_h": _modelled(scores),
    }


def _shares(config: Config, windows: Windows) -> Iterator[float]:
    """The share of the events of each window that are those of users who take part."""
    for planned in planned_windows(config, windows):
        counts: Counts = by_planned_cells(planned.plan, planned.contributions).counts
        yield float(planned.plan.retained.sum() / np.maximum(counts.samples.sum(), 1))
