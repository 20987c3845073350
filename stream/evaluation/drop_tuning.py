"""Searches the least budget with which a live map shows a drop of speed as soon as wanted. NOT PRIVATE: it uses true
values.

Every trial plants the drop in the recording and lives through it by the service's own steps
(:mod:`stream.evaluation.live`). For each grid of space and time and each way to account, admit and clip, the whole
budget is tried first; where it suffices, lower ones follow, by steps of a third, as long as they cost less than the
best so far.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.relation import NeighbouringRelation
from stream.config import Config, ConfigError, load_config
from stream.config.speed import CLIPPED_NORMAL
from stream.evaluation.evaluate import COMPARED_DELTA
from stream.evaluation.leading import DropWant
from stream.evaluation.live import life
from stream.evaluation.living import Exact, Feed, Response, Watch, exact_windows, plant
from stream.evaluation.tuning import HONEST, Grid, Recording, Rows, fineness

STEP = 1.33
"""A budget that is tried is so many times the next lower one."""
STEPS = 9
"""So many lower budgets are tried: down to a thirteenth of the largest one."""
MOST_CELLS = 40
"""Cells in which the drop is planted."""


@dataclass(frozen=True)
class Way:
    """A way to account, admit and clip, by its ``name``; ``keys`` of the configuration, None for one that it must not
    have."""

    name: str
    keys: Mapping[str, Any]


@dataclass(frozen=True)
class DropTrial:
    """One life of the recording. ``seen``: share of the drop that is on the screen in time; ``flagged``: share of cells
    that show it; ``covered``: share of all cells whose interval holds the truth. ``keys``: those of the configuration
    that it changes.
    """

    grid: Grid
    way: str
    budget: float
    seen: float
    flagged: float
    covered: float
    reaches: bool
    keys: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class DropTuning:
    """``chosen``: the cheapest trial that reaches the want and that other noise confirms; None if there is none, then
    ``nearest`` comes closest. ``skipped``: grids that were not tried, and why.
    """

    trials: tuple[DropTrial, ...]
    skipped: Mapping[tuple[Grid, str], str]
    chosen: DropTrial | None
    nearest: DropTrial | None


class DropSearch:
    """Trials of one recording. ``file``: the configuration; ``most``: largest budget; ``on_trial``: after each."""

    def __init__(
        self,
        file: Path,
        rows: Rows,
        want: DropWant,
        most: float,
        draws: int,
        on_trial: Callable[[DropTrial], None] = lambda trial: None,
    ) -> None:
        self._file, self._config, self._want, self._most = file, load_config(file), want, most
        self._draws, self._recording, self._on_trial = draws, Recording(rows), on_trial
        self._trials: list[DropTrial] = []

    def run(self, resolutions: Sequence[int], slots: Sequence[timedelta], *, finest: bool = False) -> DropTuning:
        """Search these grids; ``finest``: choose the finest grid that reaches the want, not the cheapest.

        Raises :class:`ConfigError` if no grid can be tried at all.
        """
        skipped: dict[tuple[Grid, str], str] = {}
        for slot in sorted(slots):
            for resolution in sorted(resolutions):
                skipped |= self._try((resolution, slot), finest=finest)
        if not self._trials:
            raise ConfigError("; ".join(sorted(set(skipped.values()))))
        reaching = [trial for trial in self._trials if trial.reaches]
        reaching.sort(key=lambda trial: (fineness(trial.grid) if finest else 0.0, trial.budget))
        chosen = next(filter(None, (self._confirmed(trial) for trial in reaching)), None)
        nearest = max(self._trials, key=lambda trial: (min(trial.covered, HONEST), trial.flagged))
        return DropTuning(tuple(self._trials), skipped, chosen, None if chosen else nearest)

    def ways(self) -> Iterator[Way]:
        """What the relation allows, with the configured δ, or a usual one."""
        delta = self._config.privacy.delta or COMPARED_DELTA
        pure = {"privacy.accounting": "pure", "privacy.delta": None, "privacy.windows": None}
        zcdp = {"privacy.accounting": "zcdp", "privacy.delta": delta, "privacy.epsilon": None}
        smoothed = "kalman" in self._config.speed.post_processing
        if self._config.relation == NeighbouringRelation.PARTICIPATION:
            for clipping in ("none", "residual") if smoothed else ("none",):
                yield Way(f"pure ε, clipping {clipping}", pure | {"speed.clipping": clipping})
                yield Way(f"zCDP, clipping {clipping}", zcdp | {"speed.clipping": clipping})
            return
        plain = {"speed.suppression": "none", "speed.sum_cap": 0.0, "speed.clipping": "none"}
        rolling = zcdp | plain | {"privacy.admission": "rolling", "privacy.windows": None}
        if smoothed:
            yield Way("zCDP, rolling, clipping residual", rolling | {"speed.clipping": "residual"})
        yield Way("zCDP, rolling", rolling)
        yield Way("zCDP", zcdp | plain | {"privacy.admission": "first-come"})
        yield Way("pure ε", pure | {"privacy.admission": "first-come", "speed.clipping": "none"})

    def _try(self, grid: Grid, *, finest: bool) -> dict[tuple[Grid, str], str]:
        window, problems = self._config.window, dict[tuple[Grid, str], str]()
        waits = grid[1] + window.allowed_delay + (window.publication_margin or timedelta(0))
        if waits > timedelta(minutes=self._want.minutes):
            return {(grid, ""): f"the first map with a drop is on the screen after {waits}"}
        for way in self.ways():
            same = [t.budget for t in self._trials if t.reaches and (not finest or t.grid == grid)]
            budget = min(same, default=self._most)
            try:
                for _ in range(STEPS):
                    if not self._trial(grid, way, budget, 1, self._draws).reaches:
                        break
                    budget /= STEP
            except ConfigError as error:
                problems[grid, way.name] = str(error)
        return problems

    def _trial(self, grid: Grid, way: Way, budget: float, seed: int, draws: int) -> DropTrial:
        keys = self._keys(grid, way, budget)
        config = load_config(self._file, **keys)
        seen, flagged, covered = lived(
            config, exact_windows(config, self._recording.windows(config)), self._want, draws, seed
        )
        reaches = flagged >= self._want.share - 1e-12 and covered >= HONEST
        trial = DropTrial(grid, way.name, budget, seen, flagged, covered, reaches, keys)
        self._trials.append(trial)
        self._on_trial(trial)
        return trial

    def _confirmed(self, trial: DropTrial) -> DropTrial | None:
        """``trial`` under other noise and twice as many draws; None if it does not reach the want there."""
        way = next(way for way in self.ways() if way.name == trial.way)
        again = self._trial(trial.grid, way, trial.budget, 1001, 2 * self._draws)
        return again if again.reaches else None

    def _keys(self, grid: Grid, way: Way, budget: float) -> dict[str, Any]:
        resolution, slot = grid
        windows = -(-self._config.privacy.period // slot)
        budget = float(f"{budget:.3g}")
        keys: dict[str, Any] = {"hexagons.resolution": resolution, "window.slot": slot, "privacy.budget": budget}
        speed = self._config.speed
        if speed.statistics != ("mean",):
            modelled = [name for name in speed.post_processing if name != CLIPPED_NORMAL]
            keys |= {"speed.statistics": ["mean"], "speed.post_processing": modelled}
        if self._config.relation == NeighbouringRelation.VALUES:
            keys |= {"hexagons.merge_until": None, "hexagons.coarsest_resolution": 0}
        if way.keys["privacy.accounting"] == "pure":
            keys["privacy.epsilon"] = float(f"{0.9999 * budget / windows:.4g}")
        elif way.keys.get("privacy.admission") != "rolling":
            keys["privacy.windows"] = windows
        return keys | dict(way.keys)


def lived(
    config: Config, windows: Sequence[Exact], want: DropWant, draws: int, seed: int
) -> tuple[float, float, float]:
    """(Share of the drop seen, share of cells that show it, share of cells whose interval holds the truth).

    Raises :class:`ConfigError` if no cell is busy enough to plant the drop.
    """
    slot_s = int(config.window.slot.total_seconds())
    incident = plant(windows, slot_s, most=MOST_CELLS, drop=want.drop)
    if incident is None:
        raise ConfigError("no cell has events in a whole hour and a mean speed that could fall so far")
    watch = Watch(config, incident, windows)
    until = [window for window in windows if window.slot <= incident.slots(slot_s)[-1]]
    covered, cells = 0, 0
    for draw in range(draws):
        shown, _ = life(Feed(config, seed + draw), until, watch, lambda: None)
        for window, map_ in zip(until, shown, strict=True):
            covered += int(((map_.low - 1e-9 <= window.mean) & (window.mean <= map_.high + 1e-9)).sum())
            cells += int(np.isfinite(map_.value).sum())
    response: Response = watch.response()
    return *response.after(want.minutes), covered / max(cells, 1)
