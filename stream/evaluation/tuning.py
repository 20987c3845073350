"""Searches the least budget under which the leading numbers of a recording are as narrow as wanted. NOT PRIVATE.

First, on the coarsest grid and with the mean alone, one change of the other settings after the other, each kept if it
lowers the budget. Then, with these, the grids of space and time from coarse to fine. Then the changes again, on the
chosen grid. At last the choice is tried under other noise, with more ε until that confirms it. More ε makes intervals
narrower and costs more, so the least ε is enclosed from both sides; where a coarser grid does not reach the want within
the budget, a finer one is not tried.

The settings that ``hexveil tune`` chooses among, as changes of a configuration.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

import h3.api.numpy_int as h3
import numpy as np
import numpy.typing as npt

from dpcore.budget import from_micro, to_micro
from dpcore.relation import NeighbouringRelation
from stream.config import Config, ConfigError
from stream.config.speed import CLIPPED_NORMAL, MOMENTS
from stream.evaluation.leading import TrialOutcome, Want, Windows, simulate, with_terms
from stream.offline import split_by_slot

CELLS_PER_USER = (2, 4, 8, 16)
"""Limits k that are tried under "participation"."""
_KEYS = {
    "resolution": "hexagons.resolution",
    "merge_until": "hexagons.merge_until",
    "coarsest_resolution": "hexagons.coarsest_resolution",
    "slot": "window.slot",
    "statistics": "speed.statistics",
    "clipping": "speed.clipping",
    "suppression": "speed.suppression",
    "post_processing": "speed.post_processing",
    "weight": "participation.weight",
    "cells_per_user": "participation.cells_per_user",
}
"""The keys of a configuration by the fields of a setting."""


@dataclass(frozen=True)
class Setting:
    """Everything that is searched besides ε and the budget. ``weight``, ``cells_per_user``: only under "participation".

    ``post_processing``: as configured; what models percentiles is left out of :meth:`keys` where ``statistics`` are
    without what it needs.
    """

    resolution: int
    slot: timedelta
    statistics: tuple[str, ...]
    clipping: str
    suppression: str
    merge_until: float | None
    coarsest_resolution: int
    weight: str | None
    cells_per_user: int | None
    post_processing: tuple[str, ...]

    @classmethod
    def of(cls, config: Config) -> Self:
        """The settings of a configuration."""
        places = {name: key.split(".") for name, key in _KEYS.items()}
        given: dict[str, Any] = {name: getattr(getattr(config, at), key, None) for name, (at, key) in places.items()}
        return cls(**given)

    def keys(self) -> dict[str, Any]:
        """All settings by their dotted keys in a configuration."""
        refused = set() if set(MOMENTS) <= set(self.statistics) else {CLIPPED_NORMAL}
        modelled = tuple(name for name in self.post_processing if name not in refused)
        return {key: getattr(self, name) for name, key in _KEYS.items()} | {"speed.post_processing": modelled}

    def changes_of(self, config: Config) -> dict[str, Any]:
        """Dotted keys of ``config`` that these settings change, with their new values."""
        base = Setting.of(config).keys()
        return {key: value for key, value in self.keys().items() if base[key] != value}

    def applied(self, config: Config) -> Config:
        """``config`` with these settings."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.changes_of(config).items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        return config.model_copy(
            update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
        )

    @property
    def words(self) -> str:
        """The settings besides the grid, in a few words."""
        words = ["+".join(self.statistics), f"clipping {self.clipping}"]
        if self.weight is not None:
            words.append(f"weight {self.weight}, k = {self.cells_per_user}")
        else:
            words.append(f"suppression {self.suppression}")
        if self.merge_until is not None:
            words.append(f"merged until ±{self.merge_until:g} down to {self.coarsest_resolution}")
        return ", ".join(words)


def alternatives(setting: Setting, config: Config, half_width: float | None) -> Iterator[Setting]:
    """Settings on the same grid that differ from ``setting`` in one thing, each sound under the relation of ``config``.

    ``half_width``: hexagons may be merged until the raw mean is so narrow, in km/h; None: they are not.
    """
    speed = config.speed
    if config.relation == NeighbouringRelation.VALUES:
        if speed.mean_mechanism != "allocated":
            return
        if setting.clipping == "none" and not speed.sum_cap and "kalman" in speed.post_processing:
            yield replace(setting, clipping="residual")
        yield replace(setting, suppression="none" if setting.suppression == "chop-user" else "chop-user")
        if half_width is not None and setting.merge_until is None and setting.resolution > 0:
            yield replace(setting, merge_until=half_width, coarsest_resolution=setting.resolution - 1)
        return
    if setting.clipping == "none" and "kalman" in speed.post_processing and "variance" not in setting.statistics:
        yield replace(setting, clipping="residual")
    for cells in CELLS_PER_USER:
        if cells != setting.cells_per_user:
            yield replace(setting, cells_per_user=cells)
    if setting.weight != "share":
        yield replace(setting, weight="share")
    elif config.participation is None or not config.participation.area_share:  # which needs weight "share"
        yield replace(setting, weight="user", cells_per_user=1)


Rows = npt.NDArray[np.void]
Grid = tuple[int, timedelta]
"""H3 resolution and timeslot."""

PER_DECADE = 24
EPSILONS = tuple(sorted({float(f"{10 ** (k / PER_DECADE):.2g}") for k in range(-2 * PER_DECADE, 37)}))
"""The ε of a window that are tried: 0.01 to 32, each about a tenth above the one before."""
MARGIN = 0.97
"""A change of settings is kept if it costs at most this share of the budget."""
HONEST = 0.9
"""A change is kept only if at least this share of events has intervals that hold the truth, or no less than before."""
_HONEST_STEPS = 4
"""So many ε are tried for it, each above the one before."""
_MOST_BUDGET = 100_000.0
_FINER = 6
"""A grid of the next finer kind is first tried this many steps of ε above the coarser one."""


@dataclass(frozen=True)
class Trial:
    """One simulation: settings, the place of its ε in :data:`EPSILONS`, what came out; ``seconds`` of processor time.

    ``confirming``: its noise is not the one by which settings are chosen.
    """

    setting: Setting
    level: int
    outcome: TrialOutcome
    reaches: bool
    seconds: float
    confirming: bool = False

    @property
    def grid(self) -> Grid:
        """Resolution and slot."""
        return self.setting.resolution, self.setting.slot


@dataclass(frozen=True)
class Tuning:
    """What a search ended with. ``grids``: the least trial that reaches the want within the budget on each grid; None
    if none does. ``skipped``: grids that were not tried, and why. ``chosen``: the best that other noise confirms.
    Without a chosen one, ``nearest`` is the trial within the budget that comes nearest to the want and does not reach
    it, and ``beyond`` what the grid ``costed`` needs; None if no ε that is tried suffices there. That grid is the
    coarsest, or the cheapest if some reach the want within the budget, but none is confirmed there.
    """

    trials: tuple[Trial, ...]
    grids: dict[Grid, Trial | None]
    skipped: dict[Grid, str]
    chosen: Trial | None
    nearest: Trial | None = None
    beyond: Trial | None = None
    costed: Grid | None = None


class Recording:
    """Rows of a recording, divided by the slots and in the hexagons of any setting."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._windows: dict[Grid, Windows] = {}

    def windows(self, config: Config) -> Windows:
        """Rows by start of their slot, in hexagons of the configured resolution."""
        grid = config.hexagons.resolution, config.window.slot
        if grid not in self._windows:
            self._windows[grid] = split_by_slot(self._in_cells(grid[0]), config)
        return self._windows[grid]

    def _in_cells(self, resolution: int) -> Rows:
        rows = self._rows.copy()
        positions = zip((rows["lat"] / 1e7).tolist(), (rows["lng"] / 1e7).tolist(), strict=True)
        rows["cell"] = np.fromiter(
            (h3.latlng_to_cell(lat, lng, resolution) for lat, lng in positions), np.uint64, len(rows)
        )
        return rows


class Search:
    """Trials of one recording, each made once. ``most``: largest budget of a period; ``on_trial``: after each."""

    def __init__(
        self,
        config: Config,
        rows: Rows,
        want: Want,
        most: float,
        draws: int,
        on_trial: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self._config, self._want, self._most = config, want, most
        self._draws = draws
        self._recording, self._on_trial = Recording(rows), on_trial
        self._trials: dict[tuple[Setting, int, bool], Trial] = {}

    def run(self, resolutions: Sequence[int], slots: Sequence[timedelta], *, finest: bool = False) -> Tuning:
        """Search these grids; ``finest``: choose the finest grid that reaches the want, not the cheapest.

        Raises :class:`ConfigError` if no grid can be released at all.
        """
        order = sorted(itertools.product(resolutions, slots), key=lambda grid: (grid[0], -grid[1]))
        grids: dict[Grid, Trial | None] = {}
        skipped: dict[Grid, str] = {}
        coarsest: Trial | None = None
        costed: Grid | None = None
        for grid in order:
            coarser = [trial for other, trial in grids.items() if other[0] <= grid[0] and other[1] >= grid[1]]
            if None in coarser:
                skipped[grid] = "a coarser grid does not reach the want within the budget"
                continue
            try:
                if coarsest is None:
                    coarsest, costed = self._coarsest(grid), grid
                    if coarsest is None:
                        break
                guess = max((trial.level + _FINER for trial in coarser if trial is not None), default=coarsest.level)
                grids[grid] = self.least(_on_grid(coarsest.setting, grid), guess, self._most)
            except ConfigError as error:
                skipped[grid] = str(error)
        if not self._trials:
            raise ConfigError("; ".join(sorted(set(skipped.values()))))
        candidates = [trial for trial in grids.values() if trial is not None]
        candidates.sort(key=lambda trial: (fineness(trial.grid) if finest else 0.0, trial.outcome.budget))
        chosen, cheapest = self._first_confirmed(candidates or ([] if coarsest is None else [coarsest]))
        if chosen is None:
            return self._unreached(grids, skipped, cheapest, costed)
        grids[chosen.grid] = grids.get(chosen.grid) or chosen
        return Tuning(tuple(self._trials.values()), grids, skipped, chosen)

    def _first_confirmed(self, candidates: Sequence[Trial]) -> tuple[Trial | None, Trial | None]:
        """The first of ``candidates``, refined, that other noise confirms within the budget, or None; the cheapest that
        was refined, None without candidates.
        """
        refined: list[Trial] = []
        chosen = None
        for candidate in candidates:
            refined.append(self._refined(candidate, merging=True))
            chosen = self._confirmed(refined[-1], self._most)
            if chosen is not None:
                break
        return chosen, min(refined, key=lambda trial: trial.outcome.budget, default=None)

    def _unreached(
        self, grids: dict[Grid, Trial | None], skipped: dict[Grid, str], cheapest: Trial | None, coarsest: Grid | None
    ) -> Tuning:
        """What a search ends with that chose nothing. ``cheapest``: None if no ε suffices on the ``coarsest`` grid."""
        beyond = None if cheapest is None else self._confirmed(cheapest, math.inf)
        nearest = self._nearest()
        costed = coarsest if cheapest is None else cheapest.grid
        return Tuning(tuple(self._trials.values()), grids, skipped, None, nearest, beyond, costed)

    def _confirmed(self, best: Trial, most: float) -> Trial | None:
        """``best``, or the next ε above it, that reaches the want under other noise, too, for a budget of at most
        ``most``; None if no ε does.

        Of many trials under one noise, the cheapest was also lucky.
        """
        for level in range(best.level, len(EPSILONS)):
            again = self.trial(best.setting, level, confirming=True)
            if again.outcome.budget > most:
                return None
            if again.reaches:
                return again
        return None

    def _nearest(self) -> Trial | None:
        """The trial within the budget that does not reach the want and whose intervals are narrowest; None if there is
        none.

        One that reaches it was lucky: other noise did not confirm it.
        """
        dear = min(self._trials.values(), key=lambda trial: trial.outcome.budget)
        if dear.outcome.budget > self._most:
            self._within(dear.setting, dear, self._most)
        within = [trial for trial in self._trials.values() if trial.outcome.budget <= self._most and not trial.reaches]
        return min(within, key=lambda trial: (trial.outcome.half_width, trial.outcome.budget), default=None)

    def _coarsest(self, grid: Grid) -> Trial | None:
        """The cheapest trial that reaches the want on ``grid``, whatever the budget; None if none does."""
        base = replace(Setting.of(self._config), statistics=("mean",))
        first = self.least(_on_grid(base, grid), EPSILONS.index(1.0), math.inf)
        return None if first is None else self._refined(first, merging=False)

    def least(self, setting: Setting, guess: int, most: float) -> Trial | None:
        """The trial of least ε that reaches the want for a budget of at most ``most``; None if there is none.

        ``guess``: level of ε to begin with.
        """
        low, high, best, level = -1, len(EPSILONS), None, guess
        while high - low > 1:
            trial = self.trial(setting, min(max(level, low + 1), high - 1))
            if trial.reaches:
                high, best = trial.level, trial
            elif trial.outcome.budget > most:
                self._within(setting, trial, most)
                break
            elif _next_budget(trial) > most:
                break
            else:
                low = trial.level
            level = trial.level + self._distance(trial)
        return best if best is not None and best.outcome.budget <= most else None

    def trial(self, setting: Setting, level: int, *, confirming: bool = False) -> Trial:
        """Simulate once; all trials draw from one seed, those that are ``confirming`` twice as often from another."""
        key = setting, level, confirming
        if key not in self._trials:
            began = time.process_time()
            config = setting.applied(self._config)
            slots = math.ceil(config.privacy.period / config.window.slot * 1.1)
            ample = with_terms(config, EPSILONS[level], min(slots, int(_MOST_BUDGET / EPSILONS[level])))
            draws, seed = (2 * self._draws, 2) if confirming else (self._draws, 1)
            outcome = simulate(ample, self._recording.windows(config), self._want, draws, seed)
            reaches, seconds = outcome.share >= self._want.share - 1e-12, time.process_time() - began
            trial = Trial(setting, level, outcome, reaches, seconds, confirming)
            self._trials[key] = trial
            self._on_trial(trial)
        return self._trials[key]

    def _distance(self, trial: Trial) -> int:
        """Steps of ε to the one that would reach the want if the width fell in proportion to ε; at least one."""
        if not math.isfinite(trial.outcome.half_width):
            return PER_DECADE
        steps = PER_DECADE * math.log10(max(trial.outcome.half_width, 1e-3) / self._want.half_width)
        return min(math.floor(steps), -1) if trial.reaches else max(math.ceil(steps), 1)

    def _within(self, setting: Setting, dear: Trial, most: float) -> None:
        """Try the largest ε that the budget pays for, so that it is known how near the want it comes."""
        level = dear.level - math.ceil(PER_DECADE * math.log10(dear.outcome.budget / most))
        if level >= 0:
            self.trial(setting, level)

    def _refined(self, best: Trial, *, merging: bool) -> Trial:
        """Change one setting after the other on the grid of ``best``, and keep what lowers the budget."""
        first = best.setting
        for setting in alternatives(first, self._config, self._want.half_width if merging else None):
            changed = replace(
                best.setting, **{name: value for name, value in vars(setting).items() if vars(first)[name] != value}
            )
            most = MARGIN * best.outcome.budget
            cheaper = self.least(changed, max(best.level - 1, 0), most)
            honest = None if cheaper is None else self._honest(cheaper, best.outcome.covered, most)
            best = honest or best
        return best

    def _honest(self, trial: Trial, before: float, most: float) -> Trial | None:
        """``trial``, or one of a few higher ε, whose intervals hold the truth often enough, or None."""
        for level in range(trial.level, min(trial.level + _HONEST_STEPS, len(EPSILONS))):
            candidate = self.trial(trial.setting, level)
            if candidate.outcome.budget > most:
                return None
            if candidate.reaches and candidate.outcome.covered >= min(HONEST, before):
                return candidate
        return None


def terms_of(config: Config, trial: Trial, most: float) -> dict[str, float]:
    """Dotted keys of the privacy parameters of ``trial``. Its budget is rounded up to three digits, unless that is
    above ``most``, the ε of a period; then it is exact.
    """
    privacy = trial.setting.applied(config).privacy
    least = to_micro(privacy.stated_epsilon(trial.outcome.ledger_budget), round_up=True)
    step = 10 ** max(len(str(least)) - 3, 0)
    rounded = from_micro(-(-least // step) * step)
    budget = rounded if rounded <= most else from_micro(least)
    keys = privacy.keys_for(privacy.units(EPSILONS[trial.level]), privacy.units(budget)) | {"budget": budget}
    return {f"privacy.{name}": value for name, value in keys.items() if value is not None}


def _next_budget(trial: Trial) -> float:
    level = min(trial.level + 1, len(EPSILONS) - 1)
    return trial.outcome.budget * EPSILONS[level] / EPSILONS[trial.level]


def fineness(grid: Grid) -> float:
    """Size of one cell of space and time, up to a factor: an H3 hexagon has seven children."""
    return 7.0 ** -grid[0] * grid[1].total_seconds()


def _on_grid(base: Setting, grid: Grid) -> Setting:
    resolution, slot = grid
    if base.merge_until is not None and resolution == 0:
        raise ConfigError("hexagons.merge_until merges into coarser hexagons, and there are none above resolution 0")
    coarsest = min(base.coarsest_resolution, max(resolution - 1, 0))
    return replace(base, resolution=resolution, slot=slot, coarsest_resolution=coarsest)
