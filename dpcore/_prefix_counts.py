"""Prefix counts of consistent trees, and the exact deviations of their noise."""

from __future__ import annotations

import numpy as np

from dpcore.level_tree import FloatArray, LevelTree, consistent_leaves


def prefix_deviations(tree: LevelTree, scales: FloatArray, p: float) -> FloatArray:
    """Deviations (R, K+1) for root and level ``scales`` (R, 1+h): the consistency applied to each node's unit noise."""
    real = tree.real_nodes()
    n_nodes, n_rows = 1 + sum(real), len(scales)
    node_scale = np.repeat(scales, [1, *real], axis=1)
    unit = np.tile(np.eye(n_nodes), (n_rows, 1))
    variances = np.repeat(2 * scales**2, n_nodes, axis=0)
    levels, start = [], 1
    for nodes, r in zip(tree.levels(np.zeros((1, tree.bins), dtype=np.int64)), real, strict=True):
        level = np.zeros((len(unit), nodes.shape[1]))
        level[:, :r] = unit[:, start : start + r]
        levels.append(level)
        start += r
    leaves = consistent_leaves(tree, unit[:, 0], variances[:, 0], levels, variances[:, 1:])
    moved = prefixes(leaves)
    moved -= p * moved[:, -1:]
    squares = moved.reshape(n_rows, n_nodes, -1) ** 2 * 2 * node_scale[:, :, None] ** 2
    return np.asarray(np.sqrt(squares.sum(axis=1)))


def prefixes(leaves: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, …, K leaves of each row: shape (n, K) gives (n, K + 1)."""
    return np.concatenate([np.zeros((len(leaves), 1)), np.cumsum(leaves, axis=1)], axis=1)
