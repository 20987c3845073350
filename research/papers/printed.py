"""What can be computed from the sources' own formulas: Figs. 5, 9 and 11c of [E], and theorems of the talk on [M].

Fig. 9: ‖α‖₁ of r × r cells is r² times the area of the query. Fig. 11c: the sensitivities of Cor. 7.9, Eqs. 7 and 8,
and what they do to the choice. Fig. 5: error by grid size. The talk: where the size m of pooled means begins and ends
to depend on ε, how far the median is from the best array size, and how errors scale with samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.progress import shown
from bench.spatial import tuning_queries
from dpcore.arrays import FloatArray
from dpcore.budget import MICRO
from dpcore.noise import Noise
from dpcore.single_cell.cell import bestfit_within
from dpcore.single_cell.mean import GRID, ArrayAveraging, Baseline
from dpcore.single_cell.range_mean import Levy, RangePlan
from dpcore.spatial import Domain, E2EPriv
from dpcore.spatial.grids import noisy_grid
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer, axis_overlaps
from research.papers.e2epriv import FULL as FULL_SETS
from research.papers.e2epriv import QUICK as QUICK_SETS
from research.papers.e2epriv import sets
from research.papers.questions import squares

SIZES = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 256, 295, 400, 500, 600, 803, 1024)
"""Grid sizes of Fig. 5."""
AREAS = (0.01, 0.04, 0.09, 0.16, 0.25, 0.64)
FACTORS = (1, 4, 16, 64)
"""λ of sample and user scaling."""
UPPER = 6_500
DELTAS = {"8938": (0.002, 0.01, 0.1), "869976": (0.01,), "6442841": (0.001,)}


def largest_norm(side: int, sizes: tuple[int, ...]) -> dict[str, float]:
    """Fig. 9: the largest deviation of ‖α‖₁/(r²·area) from 1 over 600 queries, and the share whose largest norm is the
    finest size's."""
    queries, area = tuning_queries(side), tuning_queries(side).areas() / side**2
    edges: list[Any] = [np.linspace(0, side, r + 1) for r in sizes]
    along_x = [axis_overlaps(e, queries.x0, queries.x1).sum(axis=1) for e in edges]
    along_y = [axis_overlaps(e, queries.y0, queries.y1).sum(axis=1) for e in edges]
    norms = np.array(along_x) * np.array(along_y)
    ratio = norms / np.outer(np.square(sizes), area)
    return {"off": float(np.abs(ratio - 1).max()), "finest": float((norms.argmax(axis=0) == len(sizes) - 1).mean())}


def sensitivities(points: int, delta: float, sizes: tuple[int, ...], scale: float) -> dict[str, FloatArray]:
    """Δ of each size by Cor. 7.9, Eq. 7 and Eq. 8, for the six areas."""
    rho, squared = delta * points, np.square(np.array(sizes, dtype=float))
    outer = 1 / (delta * (rho + 1)) + 1 / (rho + delta)
    middle = scale / (rho * (rho + 1))
    mean = float(np.mean(AREAS))
    one = np.ones(len(sizes))
    return {
        "7.9": outer + middle * squared * mean,
        "Eq. 7": (outer + middle * squared.max() * mean) * one,
        "Eq. 8": (outer + middle * squared.max()) * one,
    }


def best_size(counts: Any, candidates: tuple[int, ...], points: int, delta: float) -> dict[str, float]:
    """Probability of the best size by each sensitivity, ε = 1, ε₁ = 20 %, by the printed error: (|R − d| +
    λ‖α‖₁)/max(d, ρ)."""
    side, rho, errors = len(counts), delta * points, []
    domain, squared = Domain.unit_cells(side, side), np.square(np.array(candidates, dtype=float))
    for k, area in enumerate(AREAS):
        asked = squares(side, area, 100, 50 + k)
        chooser = E2EPriv(candidates, asked, "relative", rho=rho, rho_share=0.0, cap=1e12, expected_points=points)
        deviation = chooser.errors(counts, domain, 1e-12, points, "relative")[0]
        divisor = np.maximum(answer(image_of(counts), asked), rho)
        errors.append(deviation + 1.25 * squared * area * float(np.mean(1 / divisor)))
    error, chances = np.mean(errors, axis=0), {}
    for name, change in sensitivities(points, delta, candidates, 1.25).items():
        weight = np.exp(-0.2 / 2 * (error / change - (error / change).min()))
        chances[name] = round(float(weight[error.argmin()] / weight.sum()), 3)
    return chances


def by_size(counts: Any, draws: int) -> dict[str, float]:
    """Fig. 5: grid size → median relative error in % of squares of 1 % that hold points, ε = 1."""
    side, figures = len(counts), {}
    domain, asked = Domain.unit_cells(side, side), squares(side, 0.01, 300, 10)
    truth = answer(image_of(counts), asked)
    occupied = truth > 0
    for size in (size for size in SIZES if size <= side):
        grids = [noisy_grid(counts, domain, 1_000_000, Noise(), 1, size) for _ in range(draws)]
        off = [np.abs(grid.answers(asked) - truth)[occupied] / truth[occupied] for grid in grids]
        figures[str(size)] = round(100 * float(np.median(np.concatenate(off))), 2)
    return figures


def pooled_size(m: npt.NDArray[np.int64], epsilon: float) -> int:
    """The least m in {m_ℓ} that minimises 1 − ΣΓ/N + m/(ε ΣΓ)."""
    values = np.unique(m)
    kept = np.minimum(m[None, :], values[:, None]).sum(axis=1)
    return int(values[np.argmin(1 - kept / m.sum() + values / (epsilon * kept))])


def talk(cells: int) -> dict[str, float]:
    """Over random cells: violations of ε_min and ε_max of m^(ε), and the largest σ_Array at the median over the
    least."""
    rng, violations, worst = np.random.default_rng(7), 0, 1.0
    for _ in range(cells):
        m = np.sort(rng.zipf(1.5 + rng.random(), rng.integers(2, 40)).clip(max=200)).astype(np.int64)
        low, high, total, users = int(m[0]), int(m[-1]), int(m.sum()), len(m)
        violations += pooled_size(m, low / (users * total)) != low
        violations += pooled_size(m, (total / (users * low)) ** 2) != high

        def sigma(size: int, m: npt.NDArray[np.int64] = m) -> float:
            return 1 / bestfit_within(m, size).n_arrays

        worst = max(worst, sigma(int(m[(users - 1) // 2])) / min(sigma(int(size)) for size in np.unique(m)))
    return {"cells": cells, "violations": int(violations), "median_factor": round(worst, 2)}


def scaling(cells: int) -> dict[str, dict[str, list[float]]]:
    """Noise scales of the planned means when every user has λ times the samples, or there are λ times the users, over
    those at λ = 1: medians over random cells of 100 to 300 samples a user, where Levy's range helps."""
    rng, medians = np.random.default_rng(11), {}
    for kind in ("samples", "users"):
        rows: dict[str, list[FloatArray]] = {"baseline": [], "array": [], "levy": []}
        for _ in range(cells):
            m = np.sort(rng.integers(100, 300, rng.integers(30, 120)))
            grown = [m * factor if kind == "samples" else np.tile(m, factor) for factor in FACTORS]
            scales = np.array([_scales(samples) for samples in grown])
            for name, column in zip(rows, scales.T, strict=True):
                rows[name].append(column / column[0])
        medians[kind] = {name: np.round(np.median(each, axis=0), 3).tolist() for name, each in rows.items()}
    return medians


def _scales(samples: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """Noise scales at ε = 1 and U = 65 km/h in quanta: baseline, arrays, and Levy's range divided by its arrays."""
    levy = Levy(UPPER).plan(samples, MICRO)
    assert isinstance(levy, RangePlan), "the range helps where users have so many samples"
    of_levy = 4 * levy.half_bin / GRID / levy.grouping.n_arrays / (levy.mean_micro / MICRO)
    return Baseline(UPPER).plan(samples, MICRO).scale, ArrayAveraging(UPPER).plan(samples, MICRO).scale, of_levy


def run(quick: bool) -> dict[str, Any]:
    """ "fig9", "fig11c", "fig5", "talk" and "scaling"."""
    made = sets(QUICK_SETS if quick else FULL_SETS)
    figures: dict[str, Any] = {"fig9": {}, "fig11c": {}, "fig5": {}}
    for name, (counts, candidates) in shown(made.items(), "printed"):
        points = int(counts.sum())
        figures["fig9"][name] = largest_norm(len(counts), tuple(candidates))
        figures["fig5"][name] = by_size(counts, 2 if quick else 20)
        for delta in DELTAS.get(str(points), (0.01,)):
            figures["fig11c"][f"{name}, δ = {delta}"] = best_size(counts, tuple(candidates), points, delta)
    return figures | {"talk": talk(30 if quick else 3_000), "scaling": scaling(3 if quick else 60)}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """Nothing: the page has all figures as a table."""
