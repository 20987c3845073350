"""Measures the accuracy of spatial mechanisms on recorded count grids beside published peers, and their speed.

Parameters were chosen on other grids (``research.spatial_tuning``), under the condition that no mean relative error on
these is above the best peer's: research/experiments.md says which.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.not_private import best_non_private, leaky
from bench.progress import shown
from bench.recordings import absent, recordings
from dpcore.budget import to_micro
from dpcore.noise import Noise
from dpcore.spatial import (
    HTF,
    AdaptiveGrid,
    Auto,
    Domain,
    E2EPriv,
    KdTree,
    Privlet,
    QuadTree,
    Rectangles,
    Singular,
    SpatialMechanism,
    Uniform,
    UniformGrid,
)
from dpcore.spatial.euler import Euler
from dpcore.spatial.euler_inference import infer
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from dpcore.spatial.regions import Regions

GRIDS = ("BeijingTaxiE", "cabspottingE", "checkin")
EPSILONS = ("0.1", "1.0")
WORKLOADS_FILE, PEERS_FILE = "grids/workloads.npz", "grids/peers.json"
WORKLOADS = ("rand", "sq2", "sq6", "sq10")
METRICS = {"scaled_l2": "auto", "mre_percent": "auto-relative", "median_re": "auto-relative"}
"""What is measured, and the one mechanism that answers for each before any peer is looked at."""
SMALL_PEERS = ("ug", "ag", "quadtree", "quadtree-uniform", "kdtree", "kdtree-uniform")
"""What [H] compares HTF with."""
SANITY = 20.0
"""Relative errors divide by max(true count, 20), as the peers' do."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: accuracy on grids at each ε, speed at cells per axis and numbers of points; how often each."""

    grids: tuple[str, ...]
    epsilons: tuple[str, ...]
    trials: int
    trials_beside_peers: int
    """Number of trials of the mechanisms that answer for a metric."""
    coarse: int
    fine: int
    few: int
    many: int
    regions: int
    repeats: int


FULL = Sizes(
    GRIDS,
    EPSILONS,
    trials=5,
    trials_beside_peers=50,
    coarse=256,
    fine=1024,
    few=3_500_000,
    many=6_400_000,
    regions=10_000,
    repeats=5,
)
QUICK = Sizes(
    GRIDS[:1],
    EPSILONS[:1],
    trials=1,
    trials_beside_peers=2,
    coarse=64,
    fine=128,
    few=35_000,
    many=64_000,
    regions=100,
    repeats=1,
)


Work = Callable[[], Any]
Answers = Callable[[Rectangles], npt.NDArray[np.float64]]
Fit = Callable[[npt.NDArray[np.int64], Domain, int], Answers]


def tuning_queries(cells: int = 256, queries: int = 600, seed: int = 7) -> Rectangles:
    """Random rectangles for E2EPriv's choice: public, and none of the queries that are measured."""
    corners = np.random.default_rng(seed).integers(0, cells, (queries, 2, 2))
    low, high = corners.min(axis=1), corners.max(axis=1) + 1
    return Rectangles(low[:, 0], high[:, 0], low[:, 1], high[:, 1])


def mechanisms() -> dict[str, SpatialMechanism]:
    """What is measured, by name."""
    return {
        "uniform": Uniform(),
        "singular": Singular(),
        "ug": UniformGrid(),
        "ag": AdaptiveGrid(),
        "e2epriv": E2EPriv((8, 16, 32, 64, 128, 256), tuning_queries()),
        "e2epriv-relative": E2EPriv((8, 16, 32, 64, 128, 256), tuning_queries(), objective="relative"),
        "quadtree": QuadTree(),
        "quadtree-uniform": QuadTree("uniform"),
        "kdtree": KdTree(),
        "kdtree-uniform": KdTree("uniform"),
        "privlet": Privlet(),
        "htf": HTF(),
        "htf-search": HTF("search", margin=0.0, extra_levels=0, split_share=0.3, stop_share=0.3),
        "htf-relative": HTF(goal="relative"),
        "auto": Auto(),
        "auto-relative": Auto("relative"),
    }


def path_of(grid: str) -> str:
    """File of a count grid among the recordings."""
    return f"grids/{grid}.npz"


def recorded(grids: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """The recorded count grids by name."""
    counts = {}
    for grid in grids:
        with np.load(recordings() / path_of(grid)) as archive:
            counts[grid] = archive["counts"].astype(np.int64)
    return counts


def errors(answers: npt.NDArray[np.float64], truth: npt.NDArray[np.float64], total: int) -> dict[str, float]:
    """The peers' metrics of one workload."""
    deviation = np.abs(answers - truth)
    relative = deviation / np.maximum(truth, SANITY)
    return {
        "scaled_l2": float(np.linalg.norm(deviation) / (total * len(truth))),
        "mre_percent": float(relative.mean() * 100),
        "median_re": float(np.median(relative) * 100),
    }


def measure(sizes: Sizes) -> dict[str, Any]:
    """grid → ε → mechanism → mean figures over trials, and their standard errors, of what peers are compared with.

    One trial alone may deviate by a third.
    """
    with np.load(recordings() / WORKLOADS_FILE) as archive:
        workloads = {name: Rectangles.of_cells(archive[name]) for name in WORKLOADS}
    result: dict[str, Any] = {}
    for grid, counts in recorded(sizes.grids).items():
        domain, image = Domain.unit_cells(*counts.shape), image_of(counts)
        truth = {name: answer(image, queries) for name, queries in workloads.items()}
        for epsilon in sizes.epsilons:
            micro = to_micro(epsilon, round_up=True)
            for name, fit in shown(fits().items(), f"{grid}, ε = {epsilon}"):
                trials = sizes.trials_beside_peers if name in METRICS.values() else sizes.trials
                rows = [trial(partial(fit, counts, domain, micro), workloads, truth, counts) for _ in range(trials)]
                result.setdefault(grid, {}).setdefault(epsilon, {})[name] = summary(rows)
    return result


def trial(
    release: Callable[[], Answers],
    workloads: dict[str, Rectangles],
    truth: dict[str, npt.NDArray[np.float64]],
    counts: npt.NDArray[np.int64],
) -> dict[str, float]:
    """Time and errors of one release."""
    start = time.process_time()
    answers = release()
    row = {"cpu_seconds": time.process_time() - start}
    for workload, queries in workloads.items():
        metrics = errors(answers(queries), truth[workload], int(counts.sum()))
        row |= {f"{workload}_{metric}": value for metric, value in metrics.items()}
    return row


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means over trials and, of two or more, their standard errors."""
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    if len(rows) > 1:
        means |= {f"{key}_error": standard_error([row[key] for row in rows]) for key in rows[0]}
    return {"trials": len(rows), **means}


def standard_error(values: list[float]) -> float:
    """Standard error of the mean of independent ``values``, two or more."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def private(mechanism: SpatialMechanism) -> Fit:
    """(counts, domain, µε) -> answers of one release."""
    return lambda counts, domain, micro: mechanism.fit(counts, domain, micro, Noise()).answers


def fits() -> dict[str, Fit]:
    """(counts, domain, µε) -> answers, by name; those that look at the data say so in theirs."""

    e2epriv = mechanisms()["e2epriv"]
    assert isinstance(e2epriv, E2EPriv)
    return {name: private(mechanism) for name, mechanism in mechanisms().items()} | {
        "NOT-PRIVATE-leaky": lambda counts, domain, micro: leaky(e2epriv, counts, domain, micro, Noise()).answers,
        "NOT-PRIVATE-best": lambda counts, domain, micro: best_non_private(e2epriv, counts, domain).answers,
    }


def comparison(ours: dict[str, Any], peers: dict[str, Any]) -> list[dict[str, Any]]:
    """Our choice of each metric beside the best peer, one row per grid, ε, workload and metric."""
    rows = []
    for grid, by_epsilon in ours.items():
        for epsilon, figures in by_epsilon.items():
            for workload in WORKLOADS:
                for metric, name in METRICS.items():
                    key = f"{workload}_{metric}"
                    of_peers = {n: f[key] for n, f in peers[grid][epsilon].items() if key in f}
                    peer = min(of_peers, key=lambda n: of_peers[n])
                    row = {"grid": grid, "epsilon": epsilon, "workload": workload, "metric": metric, "ours": name}
                    row |= {"value": figures[name][key], "standard_error": figures[name].get(f"{key}_error")}
                    row |= {"peer": peer, "peer_value": of_peers[peer]}
                    rows.append(row | {"matches": figures[name][key] <= of_peers[peer]})
    return rows


def htf_claim(ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean relative error of HTF beside the best of UG, AG, QuadTree and kd-tree, one row per grid, ε and workload."""
    rows = []
    for grid, by_epsilon in ours.items():
        for epsilon, figures in by_epsilon.items():
            for workload in WORKLOADS:
                key = f"{workload}_mre_percent"
                best = min(SMALL_PEERS, key=lambda name: figures[name][key])
                row = {
                    "grid": grid,
                    "epsilon": epsilon,
                    "workload": workload,
                    "best": best,
                    "best_value": figures[best][key],
                }
                rows.append(row | {name: figures[name][key] for name in ("htf", "htf-relative", "htf-search")})
    return rows


def synthetic_points(number: int, seed: int = 3) -> npt.NDArray[np.float64]:
    """Clustered points in the unit square, shape (number, 2)."""
    rng = np.random.default_rng(seed)
    centres = rng.random((200, 2))
    points = centres[rng.integers(0, 200, number)] + rng.normal(0, 0.03, (number, 2))
    return np.asarray(points % 1.0, dtype=np.float64)


def synthetic_regions(number: int, cells: int, seed: int = 3) -> Regions:
    """Regions of 12 corners around a centre of a ``cells`` × ``cells`` grid."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(cells / 2, cells / 6, (number, 1, 2)).clip(1, cells - 1)
    corners = centres + rng.normal(0, 0.5, (number, 12, 2))
    return Regions(np.arange(number + 1) * 12, corners[..., 0].ravel(), corners[..., 1].ravel(), np.arange(number))


def speed(sizes: Sizes) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds of one fit, points to histogram, each the best of some runs."""
    coarse, fine = (Domain(0, 0, 1, 1, side, side) for side in (sizes.coarse, sizes.fine))
    few, many = synthetic_points(sizes.few), synthetic_points(sizes.many)
    town, regions = Domain.unit_cells(40, 40), synthetic_regions(sizes.regions, 40)
    noisy = Euler(2.0).fit(regions, town, 1_000_000, Noise()).components

    def e2epriv(side: int) -> E2EPriv:
        return E2EPriv(tuple(side >> halvings for halvings in range(5, -1, -1)), tuning_queries(side))

    def on(mechanism: SpatialMechanism, domain: Domain, points: npt.NDArray[np.float64]) -> tuple[str, Work]:
        size = f"{domain.rows}x{domain.columns}_{len(points) / 1e6:g}M_points"
        return size, lambda: mechanism.fit(points, domain, 1_000_000, Noise())

    runs = {
        f"{name}_{size}": work
        for name, (size, work) in (
            ("htf", on(HTF(), fine, few)),
            ("e2epriv", on(e2epriv(sizes.coarse), coarse, many)),
            ("e2epriv", on(e2epriv(sizes.fine), fine, many)),
            ("ag", on(AdaptiveGrid(), coarse, many)),
            ("ag", on(AdaptiveGrid(), fine, many)),
            ("auto", on(Auto(), coarse, many)),
            ("auto_relative", on(Auto("relative"), coarse, many)),
            ("auto_relative", on(Auto("relative"), fine, many)),
        )
    }
    runs |= {
        f"euler_40x40_{sizes.regions}_regions_with_inference": lambda: Euler(2.0, inference="covert").fit(
            regions, town, 1_000_000, Noise()
        ),
        "euler_40x40_inference_alone": lambda: infer(noisy),
    }
    return {name: timed(sizes.repeats, work) for name, work in shown(runs.items(), "speed")}


def timed(repeats: int, work: Work) -> dict[str, float]:
    """``seconds`` on the clock and ``cpu_seconds``, each the least of ``repeats`` runs."""
    wall, cpu = np.inf, np.inf
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        work()
        wall, cpu = min(wall, time.perf_counter() - start[0]), min(cpu, time.process_time() - start[1])
    return {"seconds": float(wall), "cpu_seconds": float(cpu)}


def run(quick: bool) -> dict[str, Any]:
    """Speed, and where the recorded grids are present accuracy beside the peers."""
    sizes = QUICK if quick else FULL
    result: dict[str, Any] = {"speed": speed(sizes)}
    if missing := absent(*(path_of(grid) for grid in sizes.grids), WORKLOADS_FILE, PEERS_FILE):
        return result | {"skipped": missing}
    ours = measure(sizes)
    peers = json.loads((recordings() / PEERS_FILE).read_text(encoding="utf-8"))
    return result | {"accuracy": ours, "beside_peers": comparison(ours, peers), "htf_claim": htf_claim(ours)}
