"""Accuracy of spatial mechanisms on recorded count grids beside published peers, and their speed on synthetic data.

Nothing was tuned on these grids: see ``bench.spatial_tuning``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

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
from dpcore.spatial.not_private import best_non_private, leaky
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from dpcore.spatial.regions import Regions

T = TypeVar("T")
EPSILONS = ("0.1", "1.0")
WORKLOADS = ("rand", "sq2", "sq6", "sq10")
METRICS = {"scaled_l2": "auto", "mre_percent": "auto-relative", "median_re": "auto-relative"}
"""What is measured, and the one mechanism that answers for each before any peer is looked at."""
SMALL_PEERS = ("ug", "ag", "quadtree", "quadtree-uniform", "kdtree", "kdtree-uniform")
"""What [H] compares HTF with."""
SANITY = 20.0
"""Relative errors divide by max(true count, 20), as the peers' do."""


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
        "htf-as-printed": HTF("search", margin=0.0, extra_levels=0, split_share=0.3, stop_share=0.3),
        "htf-relative": HTF(goal="relative"),
        "auto": Auto(),
        "auto-relative": Auto("relative"),
    }


def folder_of_grids() -> Path:
    """``$HEXVEIL_DATA/grids``, else ``../shared/data/grids`` beside the repository."""
    root = os.environ.get("HEXVEIL_DATA")
    return (Path(root) if root else Path(__file__).resolve().parents[2] / "shared" / "data") / "grids"


def errors(answers: npt.NDArray[np.float64], truth: npt.NDArray[np.float64], total: int) -> dict[str, float]:
    """The peers' metrics of one workload."""
    deviation = np.abs(answers - truth)
    relative = deviation / np.maximum(truth, SANITY)
    return {
        "scaled_l2": float(np.linalg.norm(deviation) / (total * len(truth))),
        "mre_percent": float(relative.mean() * 100),
        "median_re": float(np.median(relative) * 100),
    }


def grids(folder: Path) -> dict[str, npt.NDArray[np.int64]]:
    """The recorded count grids by name."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        if path.name != "workloads.npz":
            with np.load(path) as archive:
                found[path.stem] = archive["counts"].astype(np.int64)
    return found


def measure(folder: Path, trials: int) -> dict[str, Any]:
    """grid → ε → mechanism → mean figures over ``trials``, three times as many where peers are compared with."""
    with np.load(folder / "workloads.npz") as archive:
        workloads = {name: Rectangles.of_cells(archive[name]) for name in WORKLOADS}
    result: dict[str, Any] = {}
    for grid, counts in grids(folder).items():
        domain, image = Domain.unit_cells(*counts.shape), image_of(counts)
        truth = {name: answer(image, queries) for name, queries in workloads.items()}
        for epsilon in EPSILONS:
            micro = to_micro(epsilon, round_up=True)
            for name, fit in shown(fits().items(), f"{grid}, ε = {epsilon}"):
                figures: list[dict[str, float]] = []
                for _ in range(3 * trials if name in METRICS.values() else trials):
                    start = time.process_time()
                    answers = fit(counts, domain, micro)
                    row = {"cpu_seconds": time.process_time() - start}
                    for workload, queries in workloads.items():
                        found = errors(answers(queries), truth[workload], int(counts.sum()))
                        row |= {f"{workload}_{metric}": value for metric, value in found.items()}
                    figures.append(row)
                mean = {key: float(np.mean([row[key] for row in figures])) for key in figures[0]}
                result.setdefault(grid, {}).setdefault(epsilon, {})[name] = {"trials": len(figures), **mean}
    return result


def shown(steps: Iterable[T], title: str) -> Iterable[T]:
    """``steps`` under a progress bar, on a terminal only."""
    return track(list(steps), title, console=Console(stderr=True), disable=not sys.stderr.isatty())


Answers = Callable[[Rectangles], npt.NDArray[np.float64]]


def fits() -> dict[str, Callable[[npt.NDArray[np.int64], Domain, int], Answers]]:
    """(counts, domain, µε) -> answers, by name; those that look at the data say so in theirs."""
    private = {
        name: lambda counts, domain, micro, m=mechanism: m.fit(counts, domain, micro, Noise()).answers
        for name, mechanism in mechanisms().items()
    }
    e2epriv = mechanisms()["e2epriv"]
    assert isinstance(e2epriv, E2EPriv)
    looking = {
        f"NOT-PRIVATE-{name}": lambda counts, domain, micro, b=baseline: (
            b(e2epriv, counts, domain, micro, Noise()).answers
        )
        for name, baseline in (("leaky", leaky), ("best", best_non_private))
    }
    return private | looking


def comparison(ours: dict[str, Any], peers: dict[str, Any]) -> list[dict[str, Any]]:
    """Our choice of each metric beside the best peer, one row per grid, ε, workload and metric."""
    rows = []
    for grid, by_epsilon in ours.items():
        for epsilon, found in by_epsilon.items():
            for workload in WORKLOADS:
                for metric, name in METRICS.items():
                    key = f"{workload}_{metric}"
                    held = {n: f[key] for n, f in peers[grid][epsilon].items() if key in f}
                    peer = min(held, key=lambda n: held[n])
                    row = {"grid": grid, "epsilon": epsilon, "workload": workload, "metric": metric, "ours": name}
                    row |= {"value": found[name][key], "peer": peer, "peer_value": held[peer]}
                    rows.append(row | {"matches": found[name][key] <= held[peer]})
    return rows


def htf_claim(ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean relative error of HTF beside the best of UG, AG, QuadTree and kd-tree, one row per grid, ε and workload."""
    rows = []
    for grid, by_epsilon in ours.items():
        for epsilon, found in by_epsilon.items():
            for workload in WORKLOADS:
                key = f"{workload}_mre_percent"
                best = min(SMALL_PEERS, key=lambda name: found[name][key])
                row = {
                    "grid": grid,
                    "epsilon": epsilon,
                    "workload": workload,
                    "best": best,
                    "best_value": found[best][key],
                }
                rows.append(row | {name: found[name][key] for name in ("htf", "htf-relative", "htf-as-printed")})
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


def speed(repeats: int = 3) -> dict[str, dict[str, float]]:
    """Seconds and CPU seconds of one fit, points to histogram, each the best of ``repeats``."""
    fine, coarse, town = Domain(0, 0, 1, 1, 1024, 1024), Domain(0, 0, 1, 1, 256, 256), Domain.unit_cells(40, 40)
    few, many = synthetic_points(3_500_000), synthetic_points(6_400_000)
    regions = synthetic_regions(10_000, 40)
    noisy = Euler(2.0, inference=False).fit(regions, town, 1_000_000, Noise()).components
    e2epriv = E2EPriv((8, 16, 32, 64, 128, 256), tuning_queries())
    e2epriv_fine = E2EPriv((32, 64, 128, 256, 512, 1024), tuning_queries(1024))

    def fit(mechanism: SpatialMechanism, points: npt.NDArray[np.float64], domain: Domain) -> Callable[[], Any]:
        return lambda: mechanism.fit(points, domain, 1_000_000, Noise())

    runs = {
        "htf_1024x1024_3.5M_points": fit(HTF(), few, fine),
        "e2epriv_256x256_6.4M_points_6_sizes_600_queries": fit(e2epriv, many, coarse),
        "e2epriv_1024x1024_6.4M_points_6_sizes_600_queries": fit(e2epriv_fine, many, fine),
        "ag_256x256_6.4M_points": fit(AdaptiveGrid(), many, coarse),
        "ag_1024x1024_6.4M_points": fit(AdaptiveGrid(), many, fine),
        "auto_256x256_6.4M_points": fit(Auto(), many, coarse),
        "auto_relative_256x256_6.4M_points": fit(Auto("relative"), many, coarse),
        "auto_relative_1024x1024_6.4M_points": fit(Auto("relative"), many, fine),
        "euler_40x40_10000_regions_with_inference": lambda: Euler(2.0).fit(regions, town, 1_000_000, Noise()),
        "euler_40x40_inference_alone": lambda: infer(noisy),
    }
    return {name: timed(repeats, work) for name, work in shown(runs.items(), "speed")}


def timed(repeats: int, work: Callable[[], Any]) -> dict[str, float]:
    """``seconds`` on the clock and ``cpu_seconds``, each the least of ``repeats`` runs."""
    wall, cpu = np.inf, np.inf
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        work()
        wall, cpu = min(wall, time.perf_counter() - start[0]), min(cpu, time.process_time() - start[1])
    return {"seconds": float(wall), "cpu_seconds": float(cpu)}


def run(trials: int = 5, repeats: int = 5) -> dict[str, Any]:
    """Speed, and where the recorded grids are present accuracy beside the peers."""
    result: dict[str, Any] = {"speed": speed(repeats)}
    folder = folder_of_grids()
    if not folder.is_dir():
        return result | {"skipped": "no grids; let HEXVEIL_DATA name the folder of the recordings"}
    ours = measure(folder, trials)
    peers = json.loads((folder / "peers.json").read_text())
    return result | {"accuracy": ours, "beside_peers": comparison(ours, peers), "htf_claim": htf_claim(ours)}


def main() -> None:
    """Print :func:`run` as JSON."""
    print(json.dumps(run(), indent=1))


if __name__ == "__main__":
    main()
