"""Measures [T]'s comparison of mechanisms for a whole distribution: error of a prefix count, before and after
consistency.

One user's value moves from one bin to another, so Δ = 2 for the counts of a level. Figures are root mean square errors
of the K prefix counts in units of Δ/ε. Those before consistency are exact; those after it are means over ``draws``,
with the total known, as under relation "values". One generated cell is also released as it is published, with its
simultaneous band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.progress import shown
from dpcore.budget import to_micro
from dpcore.cdf import bin_edges, bin_tree, consistent_cells
from dpcore.level_tree import (
    MAX_BRANCHING,
    MAX_PADDING_PERCENT,
    LevelTree,
    choose_tree,
    consistent_leaves,
    noisy_levels,
    split_budget,
)
from dpcore.noise import Noise
from dpcore.scales import LaplaceScales, noise_ratio

WIDEST = 64
"""Largest branching that the search without our cap tries."""

USERS, SAMPLES, UPPER, BINS = 200, 5, 650, 64
"""The cell whose distribution is shown: users, samples of each, largest speed in 0.1 km/h, bins."""
EPSILONS = ("0.5", "1", "5")


@dataclass(frozen=True)
class Sizes:
    bins: tuple[int, ...]
    draws: int


FULL = Sizes(bins=(16, 32, 64, 128, 256, 289, 512, 1024, 2048, 4096), draws=200)
QUICK = Sizes(bins=(16, 256), draws=20)


def equal_shares(tree: LevelTree) -> np.ndarray:
    """Budget shares of ``tree``'s levels if every level has the same ε."""
    return np.full(tree.height, 1 / tree.height)


def before(tree: LevelTree, shares: np.ndarray) -> float:
    """Root mean square error of a prefix count as drawn, in Δ/ε."""
    total = sum(digits / share**2 for digits, share in zip(tree.digit_sums(), shares, strict=True))
    return math.sqrt(2 * total / tree.bins)


def after(tree: LevelTree, shares: np.ndarray, draws: int) -> float:
    """The same after weighted least squares with a known total, over ``draws``."""
    rng, levels = np.random.default_rng(tree.bins), []
    for nodes, real, share in zip(
        tree.levels(np.zeros((1, tree.bins), np.int64)), tree.real_nodes(), shares, strict=True
    ):
        level = np.zeros((draws, nodes.shape[1]))
        level[:, :real] = rng.laplace(0, 1 / share, (draws, real))
        levels.append(level)
    variances = np.tile(2 / shares**2, (draws, 1))
    leaves = consistent_leaves(tree, np.zeros(draws), np.zeros(draws), levels, variances)
    prefixes = np.cumsum(leaves, axis=1)[:, :-1]
    return math.sqrt(float(np.square(prefixes).sum(axis=1).mean()) / tree.bins)


def interval_queries(bins: int) -> float:
    """Every prefix count is a query of its own: one value moves up to K − 1 of them by 1, which is Δ/2 each."""
    return math.sqrt(2) * (bins - 1) / 2


def trees(bins: int) -> Iterator[LevelTree]:
    """Trees of two to four levels with branching up to :data:`WIDEST` and at most 8 % padding; the last level fills
    up."""
    most = bins * (100 + MAX_PADDING_PERCENT) // 100
    stack: list[tuple[int, ...]] = [(n,) for n in range(2, WIDEST + 1)]
    while stack:
        factors = stack.pop()
        last = -(-bins // math.prod(factors))
        if 2 <= last <= WIDEST and math.prod(factors) * last <= most:
            yield LevelTree(bins, (*factors, last))
        if len(factors) < 3 and last > 4:
            stack += [(*factors, n) for n in range(2, min(factors[-1], last) + 1)]


def compared(bins: int, draws: int) -> dict[str, Any]:
    """Mechanism → its factors and its errors before and after consistency, at ``bins``."""
    histogram = LevelTree(bins, (bins,))
    binary = LevelTree(bins, (2,) * (bins - 1).bit_length())
    uniform = min(trees(bins), key=lambda tree: before(tree, equal_shares(tree)))
    optimal = min(trees(bins), key=lambda tree: before(tree, tree.shares()))
    ours = choose_tree(bins)
    chosen = {
        "histogram": (histogram, equal_shares(histogram)),
        "binary tree": (binary, equal_shares(binary)),
        "level-uniform tree, equal ε": (uniform, equal_shares(uniform)),
        "level-uniform tree, best ε": (optimal, optimal.shares()),
        f"ours (at most {MAX_BRANCHING})": (ours, ours.shares()),
    }
    rows: dict[str, Any] = {
        name: {
            "factors": list(tree.factors),
            "before": round(before(tree, shares), 2),
            "after": round(after(tree, shares, draws), 2),
        }
        for name, (tree, shares) in chosen.items()
    }
    return rows | {"interval queries": {"before": round(interval_queries(bins), 2)}}


def banded(epsilon: str, draws: int) -> dict[str, Any]:
    """The cell's distribution released ``draws`` times at ``epsilon``: the first of them with its band, and how often
    bands hold.

    ``error``: root mean square error of a share; ``half_width``: mean of the bands'; both in percent of the samples.
    """
    rng, n = np.random.default_rng(6), USERS * SAMPLES
    speeds = np.clip(np.where(rng.random(n) < 0.3, rng.normal(120, 60, n), rng.normal(380, 90, n)), 0, UPPER)
    edges, tree = bin_edges(UPPER, BINS), bin_tree(UPPER, BINS)
    histogram = np.bincount(np.searchsorted(edges, speeds.astype(np.int64), side="right") - 1, minlength=BINS)
    levels = np.array(
        [noise_ratio(2 * SAMPLES, part) for part in split_budget(to_micro(epsilon, round_up=False), tree.shares())]
    )
    scales = LaplaceScales(*(np.tile(column, (draws, 1)) for column in levels.T))
    noisy = noisy_levels(tree, tree.levels(np.tile(histogram, (draws, 1))), scales, Noise())
    total = np.full(draws, float(n)), np.zeros(draws)
    shares = consistent_cells(tree, edges, total, noisy, scales.values).shares()
    truth = np.cumsum(histogram) / n
    inside = (shares.low <= truth + 1e-12) & (truth - 1e-12 <= shares.high)
    return {
        "held": round(100 * float(inside.all(axis=1).mean()), 1),
        "error": round(100 * math.sqrt(float(np.square(shares.value - truth).mean())), 2),
        "half_width": round(50 * float((shares.high - shares.low).mean()), 2),
        "at": (edges[1:] / 10).round(2).tolist(),
        "truth": truth.tolist(),
        **{name: getattr(shares, name)[0].round(4).tolist() for name in ("value", "low", "high")},
    }


def run(quick: bool) -> dict[str, Any]:
    """``bins``: K → mechanism → errors; ``best_branching``: the n that minimises (n − 1)/ln³n; ``released``: ε → a
    cell."""
    sizes = QUICK if quick else FULL
    branching = np.linspace(2, 64, 62_001)
    best = float(branching[np.argmin((branching - 1) / np.log(branching) ** 3)])
    by_bins = {bins: compared(bins, sizes.draws) for bins in shown(sizes.bins, "distributions")}
    released = {epsilon: banded(epsilon, 10 * sizes.draws) for epsilon in EPSILONS}
    return {"best_branching": round(best, 2), "bins": by_bins, "released": released}


def plot(figures: dict[str, Any], folder: Path) -> None:
    """``papers-cdf.svg``: error of a prefix count against K, before and after consistency; ``papers-cdf-band.svg``: one
    cell."""
    from matplotlib.figure import Figure

    table = figures["bins"]
    sheet = Figure(figsize=(10, 4), layout="constrained")
    for axes, when in zip(sheet.subplots(1, 2, sharey=True), ("before", "after"), strict=True):
        for name in next(iter(table.values())):
            rows = {int(bins): row[name][when] for bins, row in table.items() if when in row[name]}
            if rows:
                axes.plot(list(rows), list(rows.values()), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="bins K", title=f"{when} consistency")
    sheet.axes[0].set_ylabel("error of a prefix count, Δ/ε")
    sheet.axes[0].legend(fontsize=8)
    sheet.savefig(folder / "papers-cdf.svg")
    _plot_bands(figures["released"]).savefig(folder / "papers-cdf-band.svg")


def _plot_bands(released: dict[str, Any]) -> Any:
    """A panel per ε: the true distribution of the cell, and the released one in its band."""
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (epsilon, cell) in zip(sheet.subplots(1, len(released), sharey=True), released.items(), strict=True):
        axes.fill_between(cell["at"], cell["low"], cell["high"], step="post", alpha=0.25, label="95 % band")
        axes.step(cell["at"], cell["value"], where="post", label="released")
        axes.step(cell["at"], cell["truth"], where="post", color="black", linewidth=0.8, label="true")
        axes.set(title=f"ε = {epsilon}", xlabel="speed, km/h")
    sheet.axes[0].set_ylabel("share of samples up to a speed")
    sheet.axes[0].legend(fontsize=8)
    return sheet
