"""Accuracy of spatial mechanisms on recorded count grids beside published peers, and their speed on synthetic points."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.mechanisms import best_of
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
    SparseHierarchy,
    SpatialMechanism,
    Uniform,
    UniformGrid,
)
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer

EPSILONS = ("0.1", "1.0")
WORKLOADS = ("rand", "sq2", "sq6", "sq10")
METRICS = ("scaled_l2", "mre_percent", "median_re")
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
        "htf-search": HTF("search"),
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
        "median_re": float(np.median(relative)),
    }


def measure(folder: Path, trials: int) -> dict[str, Any]:
    """grid → ε → mechanism → mean figures over ``trials``."""
    with np.load(folder / "workloads.npz") as archive:
        workloads = {name: Rectangles.of_cells(archive[name]) for name in WORKLOADS}
    result: dict[str, Any] = {}
    for path in sorted(folder.glob("*.npz")):
        if path.name == "workloads.npz":
            continue
        with np.load(path) as archive:
            counts = archive["counts"].astype(np.int64)
        domain, image = Domain.unit_cells(*counts.shape), image_of(counts)
        truth = {name: answer(image, queries) for name, queries in workloads.items()}
        for epsilon in EPSILONS:
            for name, mechanism in mechanisms().items():
                figures: list[dict[str, float]] = []
                for _ in range(trials):
                    start = time.process_time()
                    histogram = mechanism.fit(counts, domain, to_micro(epsilon, round_up=True), Noise())
                    row = {"cpu_seconds": time.process_time() - start}
                    for workload, queries in workloads.items():
                        found = errors(histogram.answers(queries), truth[workload], int(counts.sum()))
                        row |= {f"{workload}_{metric}": value for metric, value in found.items()}
                    figures.append(row)
                mean = {key: float(np.mean([row[key] for row in figures])) for key in figures[0]}
                result.setdefault(path.stem, {}).setdefault(epsilon, {})[name] = {"trials": trials, **mean}
    return result


def comparison(ours: dict[str, Any], peers: dict[str, Any]) -> list[dict[str, Any]]:
    """Our best beside the best peer, one row per grid, ε, workload and metric."""
    rows = []
    for grid, by_epsilon in ours.items():
        for epsilon, found in by_epsilon.items():
            for key in (f"{workload}_{metric}" for workload in WORKLOADS for metric in METRICS[:2]):
                name, figures = min(found.items(), key=lambda item: item[1][key])
                peer_name, peer = min(
                    ((n, f) for n, f in peers[grid][epsilon].items() if key in f), key=lambda item: item[1][key]
                )
                rows.append(
                    {
                        "grid": grid,
                        "epsilon": epsilon,
                        "metric": key,
                        "ours": name,
                        "value": figures[key],
                        "peer": peer_name,
                        "peer_value": peer[key],
                        "ratio": figures[key] / peer[key],
                    }
                )
    return rows


def synthetic_points(number: int, seed: int = 3) -> npt.NDArray[np.float64]:
    """Clustered points in the unit square, shape (number, 2)."""
    rng = np.random.default_rng(seed)
    centres = rng.random((200, 2))
    points = centres[rng.integers(0, 200, number)] + rng.normal(0, 0.03, (number, 2))
    return np.asarray(points % 1.0, dtype=np.float64)


def speed(repeats: int = 3) -> dict[str, float]:
    """Seconds of fit on points, best of ``repeats``."""
    fine, coarse = Domain(0, 0, 1, 1, 1024, 1024), Domain(0, 0, 1, 1, 256, 256)
    few, many = synthetic_points(3_500_000), synthetic_points(6_400_000)
    chooser = E2EPriv((8, 16, 32, 64, 128, 256), tuning_queries())
    runs = {
        "htf_1024x1024_3.5M_seconds": (HTF(), few, fine),
        "e2epriv_6.4M_6_sizes_600_queries_seconds": (chooser, many, coarse),
        "ag_6.4M_seconds": (AdaptiveGrid(), many, coarse),
        "sparse_6.4M_seconds": (SparseHierarchy(), many, coarse),
    }
    return {
        name: best_of(repeats, lambda m=mechanism, p=points, d=domain: m.fit(p, d, 1_000_000, Noise()))[0]  # type: ignore[misc]
        for name, (mechanism, points, domain) in runs.items()
    }


def run(trials: int = 5, repeats: int = 3) -> dict[str, Any]:
    """Speed, and where the recorded grids are present accuracy beside the peers."""
    result: dict[str, Any] = {"speed": speed(repeats)}
    folder = folder_of_grids()
    if not folder.is_dir():
        return result | {"skipped": "no grids; let HEXVEIL_DATA name the folder of the recordings"}
    ours = measure(folder, trials)
    peers = json.loads((folder / "peers.json").read_text())
    return result | {"accuracy": ours, "beside_peers": comparison(ours, peers)}


def main() -> None:
    """Print :func:`run` as JSON."""
    print(json.dumps(run(), indent=1))


if __name__ == "__main__":
    main()
