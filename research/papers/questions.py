"""Families of ranges of one count grid, and the errors that [E] and [H] report of a release's answers to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.spatial import Fit
from dpcore.arrays import FloatArray
from dpcore.budget import to_micro
from dpcore.spatial import Domain, Rectangles
from dpcore.spatial.partition import image_of
from dpcore.spatial.queries import answer
from research.papers.sets import Grid

SMOOTHING = 20.0
"""[H] divides by max(true count, 20)."""


def squares(side: int, share: float, number: int, seed: int) -> Rectangles:
    """Squares of ``share`` of the area at random places inside side × side cells, half-open."""
    rng, length = np.random.default_rng(seed), side * share**0.5
    x, y = rng.uniform(0, side - length, (2, number))
    return Rectangles(x, x + length, y, y + length)


def mixed(side: int, number: int, seed: int) -> Rectangles:
    """Ranges of any size and shape: two uniform corners each, half-open."""
    corners = np.sort(np.random.default_rng(seed).uniform(0, side, (2, number, 2)), axis=2)
    return Rectangles(corners[0, :, 0], corners[0, :, 1], corners[1, :, 0], corners[1, :, 1])


@dataclass(frozen=True)
class Questions:
    """Families of ranges of one count grid, and their true answers."""

    counts: Grid
    queries: list[Rectangles]
    truths: list[FloatArray]

    @classmethod
    def of(cls, counts: Grid, queries: list[Rectangles]) -> Questions:
        return cls(counts, queries, [answer(image_of(counts), query) for query in queries])

    def _answers(self, fit: Fit, epsilon: str) -> Iterator[tuple[FloatArray, FloatArray]]:
        """(Answers, truth) of each family, by one release."""
        release = fit(self.counts, Domain.unit_cells(*self.counts.shape), to_micro(epsilon, round_up=False))
        for query, truth in zip(self.queries, self.truths, strict=True):
            yield release(query), truth

    def relative_errors(self, fit: Fit, epsilon: str) -> list[FloatArray]:
        """[E]: |error| / truth of each family's ranges that hold points, by one release."""
        return [
            np.abs(estimate - truth)[truth > 0] / truth[truth > 0] for estimate, truth in self._answers(fit, epsilon)
        ]

    def mean_errors(self, fit: Fit, epsilon: str) -> list[float]:
        """[H]: mean of |error| / max(truth, 20) of each family in %, by one release."""
        return [
            100 * float(np.mean(np.abs(estimate - truth) / np.maximum(truth, SMOOTHING)))
            for estimate, truth in self._answers(fit, epsilon)
        ]
