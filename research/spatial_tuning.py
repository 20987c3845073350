"""Shows how the parameters of the sparse hierarchy and its sparse reading were chosen, and their error on held-out
grids.

They were chosen on eight grids (two of recorded bus positions, six generated), validated on eight others (other days,
seeds and sizes), and only then measured beside the peers on DPBench's grids by ``bench.spatial``. Two of the tuning
grids, :data:`ALIKE`, have the size and occupancy of two of the peers' grids, so the sweep leaves them out.

The rule for reading space as empty was chosen on :data:`EVEN` grids, which have little or no empty space, mended on
:data:`NESTED` grids, where an earlier one failed, and is reported on :data:`UNSEEN` grids of other kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.recordings import absent, path_of_day
from bench.spatial import SANITY
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    PartitionHistogram,
    Privlet,
    QuadTree,
    Rectangles,
    Singular,
    SparseHierarchy,
    SpatialMechanism,
    UniformGrid,
    posterior,
)
from dpcore.spatial import _mixture as evenness
from dpcore.spatial import _mixture as mixture
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from research.spatial_grids import ALIKE, DAYS, EVEN, HELD_OUT, NESTED, TUNING, UNSEEN, Counts, Grids

EPSILONS = (100_000, 1_000_000)
CHOICE_EPSILONS = (50_000, 100_000, 200_000, 1_000_000, 4_000_000)
SWEPT: dict[str, tuple[Any, ...]] = {
    "ZERO_ADVANTAGE": (0.5, 0.6, 0.75, 0.9, 1.0),
    "ZERO_PSEUDO_COUNT": (0.05, 1.0, 5.0, 20.0),
    "THIN": (0.0, 0.5, 1.0, 2.0),
    "TRUSTED": (0.0, 10.0, 30.0, 100.0, 300.0),
    "ZERO_IN_EVEN_SPACE": (0.05, 1.0, 5.0),
    "EVEN": (0.0, 2.0, 3.0),
    "DROPPED": (2.6, 3.0, 5.0),
    "UNEVEN_BOX": (-1e9, 2.0, 4.0),
    "MOST": (1.0, 2.0, 3.0, 5.0, 1e9),
    "growth": (1.3, 1.6, 2.0),
    "stop_share": (0.4, 0.5, 0.6),
    "stop_sigmas": (2.0, 3.0, 4.0),
    "parts": (3, 4, 6),
}
"""One parameter at a time around the values in use: constants of the reading of sparse space, else of
SparseHierarchy."""


@dataclass(frozen=True)
class Sizes:
    """How much of the above: grids of each kind, values of each parameter, ε, and noise tapes."""

    grids: int | None
    values: int | None
    epsilons: int
    trials: int
    choices: int
    """ε at which the reading for relative error stands beside the other."""


FULL = Sizes(grids=None, values=None, epsilons=2, trials=2, choices=5)
QUICK = Sizes(grids=1, values=1, epsilons=1, trials=1, choices=1)


def workloads(cells: int, seed: int = 99, queries: int = 1000) -> list[Rectangles]:
    """Random rectangles and squares of 2, 6 and 10 % of the area."""
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.integers(0, cells, (queries, 2, 2)), axis=1)
    families = [Rectangles.of_cells(corners.transpose(0, 2, 1).reshape(-1, 4))]
    for share in (0.02, 0.06, 0.10):
        side = max(1, round(cells * share**0.5))
        x, y = rng.integers(0, cells - side + 1, (2, queries))
        families.append(Rectangles.of_cells(np.column_stack([x, x + side - 1, y, y + side - 1])))
    return families


@dataclass(frozen=True)
class Case:
    """One grid at one ε with its workloads and their true answers."""

    counts: Counts
    epsilon_micro: int
    queries: list[Rectangles]
    truth: list[npt.NDArray[np.float64]]

    def errors(self, mechanism: SpatialMechanism, seeds: range) -> npt.NDArray[np.float64]:
        """(workloads, 2): root mean squared error and mean relative error, mean over recorded tapes.

        A histogram with a sparse reading is read both ways: squared error of its unbiased counts, relative of its
        sparse.
        """
        domain = Domain.unit_cells(*self.counts.shape)
        total = np.zeros((len(self.queries), 2))
        for seed in seeds:
            tape = Noise(np.random.default_rng([seed, self.epsilon_micro]).bytes)
            histogram = mechanism.fit(self.counts, domain, self.epsilon_micro, tape)
            plain = replace(histogram, sparse=None) if isinstance(histogram, PartitionHistogram) else histogram
            for row, queries, truth in zip(total, self.queries, self.truth, strict=True):
                squared = (plain.answers(queries) - truth) ** 2
                relative = np.abs(histogram.answers(queries) - truth) / np.maximum(truth, SANITY)
                row += np.sqrt(squared.mean()), relative.mean()
        return total / len(seeds)


def cases(grids: Grids, sizes: Sizes) -> Iterator[tuple[str, Case]]:
    """Every grid at every ε."""
    for name, make in list(grids.items())[: sizes.grids]:
        counts = make()
        queries, image = workloads(counts.shape[0]), image_of(counts)
        for epsilon in EPSILONS[: sizes.epsilons]:
            yield f"{name}, ε {epsilon / 1e6:g}", Case(counts, epsilon, queries, [answer(image, q) for q in queries])


def mean_ratio(errors: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]) -> list[float]:
    """Geometric means of the two errors' ratios over cases and workloads."""
    ratio = np.log(np.maximum(errors, 1e-12) / np.maximum(reference, 1e-12))
    return np.exp(ratio.reshape(-1, 2).mean(axis=0)).round(4).tolist()  # type: ignore[no-any-return]


def sweep(cases: Sequence[Case], sizes: Sizes) -> dict[str, dict[str, dict[str, float]]]:
    """parameter → value → squared and relative error over those of the values in use, on the same tapes."""

    def both(**parameters: Any) -> npt.NDArray[np.float64]:
        mechanism = SparseHierarchy(goal="relative", **parameters)
        return np.array([case.errors(mechanism, range(sizes.trials)) for case in cases])

    steps = [(name, value) for name, values in SWEPT.items() for value in values[: sizes.values]]
    reference = both()
    result: dict[str, Any] = {name: {} for name in SWEPT}
    for name, value in shown(steps, "sweep"):
        holders = [module for module in (posterior, mixture, evenness) if hasattr(module, name)]
        if holders:
            with mock.patch.object(holders[0], name, value):
                errors = both()
        else:
            errors = both(**{name: value})
        squared, relative = mean_ratio(errors, reference)
        result[name][str(value)] = {"squared": squared, "relative": relative}
    return result


def beside_absolute(grids: Grids, sizes: Sizes) -> dict[str, dict[str, list[float]]]:
    """grid → ε → mean relative error of goal "relative" over that of goal "absolute" on the same draws, per
    workload."""
    rows: dict[str, dict[str, list[float]]] = {}
    for name, make in shown(list(grids.items())[: sizes.grids], "beside absolute"):
        counts = make()
        domain, image = Domain.unit_cells(*counts.shape), image_of(counts)
        asked = workloads(counts.shape[0], queries=300)
        for micro in CHOICE_EPSILONS[: sizes.choices]:
            total = np.zeros((2, len(asked)))
            for seed in range(2 * sizes.trials):
                drawn = Auto("relative").fit(counts, domain, micro, Noise(np.random.default_rng([seed, micro]).bytes))
                assert isinstance(drawn, PartitionHistogram)
                for row, histogram in zip(total, (drawn, replace(drawn, sparse=None)), strict=True):
                    for column, queries in enumerate(asked):
                        truth = answer(image, queries)
                        row[column] += (np.abs(histogram.answers(queries) - truth) / np.maximum(truth, SANITY)).mean()
            rows.setdefault(name, {})[str(micro / 1e6)] = (total[0] / np.maximum(total[1], 1e-12)).round(3).tolist()
    return rows


def validate(cases: dict[str, Case], sizes: Sizes) -> dict[str, Any]:
    """case → Auto's errors over the best of the mechanisms known from papers, per workload, and how often it is no
    worse."""
    known: list[SpatialMechanism] = [Singular(), UniformGrid(), AdaptiveGrid(), QuadTree(), Privlet(), HTF()]
    seeds, rows, wins = range(sizes.trials), {}, np.zeros(2, dtype=int)
    for name, case in shown(cases.items(), "held out"):
        best = np.min([case.errors(mechanism, seeds) for mechanism in known], axis=0)
        ours = case.errors(Auto("relative"), seeds)
        wins += (ours <= best).sum(axis=0)
        rows[name] = {
            "squared": (ours / best)[:, 0].round(3).tolist(),
            "relative": (ours / best)[:, 1].round(3).tolist(),
        }
    return {"no worse than the best": wins.tolist(), "of": len(rows) * 4, "ratios": rows}


def run(quick: bool) -> dict[str, Any]:
    """The sweep on the tuning grids, then the validation."""
    if missing := absent(*map(path_of_day, DAYS)):
        return {"skipped": missing}
    sizes = QUICK if quick else FULL
    return {
        "sweep": sweep([case for _, case in cases(TUNING, sizes)], sizes),
        "held_out": validate(dict(cases(HELD_OUT, sizes)), sizes),
        "beside_absolute": {
            "seen": beside_absolute(EVEN | NESTED | ALIKE | TUNING, sizes),
            "unseen": beside_absolute(UNSEEN, sizes),
        },
    }
