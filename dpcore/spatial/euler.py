"""Euler histograms: how many users' regions meet a rectangle of cells, each region counted once.

A (2·rows−1) × (2·columns−1) array counts the regions whose interior meets each face (even–even), vertex (odd–odd) and
edge of the grid. Over a block of cells the alternating sum Σ(−1)^(i+j) H of the components strictly inside it counts
every convex region once, however many cells it covers.

Neighbours differ by all regions of one user, at most r (relation "participation"). A share of ε may pay for the number
of all regions, which every other unbiased answer then uses: small errors at large ranges.

To be proved: :meth:`Euler.fit` at ε is ε-DP. Proof: a region of diameter at most B meets at most k + 1 rows and columns
of cells, k = ⌈B/d⌉, hence at most (2k+1)² components, and adds 1 to each. So a user changes the array by at most
:meth:`Euler.sensitivity` = r·(2k+1)² in L1, and noise of that scale over ε costs ε. The number of all regions, the
alternating sum over the whole grid, counts each of them once: it changes by at most r, noise of scale r/ε₁ costs ε₁,
and the components cost ε − ε₁. Inference is post-processing. Tested: by brute force and by sampling in
tests/dpcore/spatial/test_euler.py. Source: [B], with the sensitivity and the constraints corrected as in
research/errata.md.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast, get_args

import numpy as np

from dpcore.arrays import FloatArray
from dpcore.errors import ParameterError
from dpcore.noise import Noise
from dpcore.spatial.domain import Domain, IntGrid
from dpcore.spatial.euler_inference import Grade, Inference, infer, signs, truncated, whole_of
from dpcore.spatial.histogram import HistogramError
from dpcore.spatial.mechanism import can_draw, laplace_variance, noisy_counts
from dpcore.spatial.queries import QueryError, Rectangles, integral_image
from dpcore.spatial.range_noise import Intervals, NoisySums, between, independent_tails, spread_tails
from dpcore.spatial.regions import Footprints, Regions

MAX_INFERENCE_CELLS = 128 * 128
"""Larger grids are released without inference: the linear program would take minutes."""


class Total(NamedTuple):
    """The number of all regions as it was drawn by itself, and the variance of its noise."""

    value: int
    variance: float


@dataclass(frozen=True)
class EulerHistogram:
    """Released component counts, int64 (2·rows−1, 2·columns−1), and the noise variance of each before inference.

    ``drawn``: the counts before inference, of the same shape, which intervals need; None where there was none or it is
    unknown. ``grade`` says what holds of them: ``noisy`` (unbiased, may be negative), ``ordered`` (no edge above its
    faces, no vertex above its edges, may be negative), ``truncated`` (none is negative), ``consistent`` (ordered and
    not negative) or ``covert`` (every answer ≥ 0, and never smaller for a larger rectangle). ``total``: a second, more
    accurate draw of the answer for the whole grid, only where counts may be negative: every answer uses it, by weighted
    least squares. Raises :class:`~dpcore.spatial.histogram.HistogramError`.
    """

    domain: Domain
    components: IntGrid
    variance: float
    grade: Grade
    drawn: IntGrid | None = None
    total: Total | None = None

    def __post_init__(self) -> None:
        shape = 2 * self.domain.rows - 1, 2 * self.domain.columns - 1
        for components in (self.components, self.drawn):
            if components is not None and components.shape != shape:
                raise HistogramError(f"components of shape {components.shape}; this grid has {shape}")
        if not (math.isfinite(self.variance) and self.variance >= 0) or self.grade not in get_args(Grade):
            raise HistogramError(
                f"variance {self.variance}, grade {self.grade!r}; give a finite variance and a known grade"
            )
        if self.total is not None and not (math.isfinite(self.total.variance) and self.total.variance >= 0):
            raise HistogramError(f"a total with variance {self.total.variance}; give a finite one of 0 or more")
        if self.grade in ("ordered", "truncated") and self.drawn is None:
            raise HistogramError(
                f"{self.grade} counts without those that were drawn, of which they are a reading; give drawn"
            )
        if self.total is not None and self.grade not in ("noisy", "ordered"):
            raise HistogramError(f"a total beside counts of grade {self.grade!r}, which do not use it; leave it out")

    @cached_property
    def _image(self) -> IntGrid:
        return np.asarray(integral_image(self.components * signs(self.components.shape)), dtype=np.int64)

    @cached_property
    def _correction(self) -> tuple[float, float]:
        """What the total adds to the answer of a block for each of its components, and the share of their variance it
        takes.

        Least squares spreads the difference of the two totals over all components by their variances, which are equal.
        """
        if self.total is None or self.variance == 0:
            return 0.0, 0.0
        share = 1 / (self.components.size + self.total.variance / self.variance)
        return (self.total.value - whole_of(self.components)) * share, share

    def _blocks(self, rectangles: Rectangles) -> tuple[IntGrid, ...]:
        rectangles.require_inside(self.domain)
        if rectangles.whole_edges is None:
            raise QueryError("a query cuts through cells; an Euler histogram answers for whole cells only")
        return rectangles.whole_edges

    def answers(self, rectangles: Rectangles) -> FloatArray:
        """Regions that meet each rectangle of whole cells, shape (Q,); raises ``QueryError`` for others."""
        x0, x1, y0, y1 = self._blocks(rectangles)
        empty = (x0 == x1) | (y0 == y1)
        # Cells x0 .. x1−1 are component rows 2·x0 .. 2·x1−2: their half-open range ends at 2·x1−1.
        top, bottom = np.where(empty, 0, 2 * x0), np.where(empty, 0, 2 * x1 - 1)
        left, right = np.where(empty, 0, 2 * y0), np.where(empty, 0, 2 * y1 - 1)
        image = self._image
        exact = image[bottom, right] - image[top, right] - image[bottom, left] + image[top, left]
        return exact + self._correction[0] * _inside(x0, x1, y0, y1)

    def intervals(self, rectangles: Rectangles) -> Intervals | None:
        """95 % intervals of the regions that meet each rectangle of whole cells; None after inference without
        ``drawn``.

        Inference moves answers by amounts that no release knows; draws before it are unbiased, with known noise.
        """
        x0, x1, y0, y1 = self._blocks(rectangles)
        drawn = self.components if self.grade == "noisy" else self.drawn
        if drawn is None:
            return None
        inside = _inside(x0, x1, y0, y1)
        unbiased = replace(self, components=drawn, drawn=None, grade="noisy")
        answers, share = unbiased.answers(rectangles), unbiased._correction[1]
        if share > 0:
            tails = spread_tails(self.variance * inside * np.maximum(1 - share * inside, 0.0))
        else:
            tails = independent_tails(inside, self.variance)
        sums = NoisySums(answers, inside, tails)
        return between(sums, sums)

    def to_release(self) -> dict[str, Any]:
        """``kind`` "euler": components row by row, their variance and grade, and as they were drawn.

        Truncated counts follow from the draws, so the draws are written, with their grade and ``reading`` "truncated".
        Ordered ones stand beside the draws, as ``ordered``: who does not know them has unbiased answers and exact
        intervals.
        """
        if self.grade in ("ordered", "truncated"):
            assert self.drawn is not None
            drawn = replace(self, components=self.drawn, grade="noisy", drawn=None).to_release()
            read = {"reading": self.grade} if self.grade == "truncated" else {"ordered": self.components.tolist()}
            return drawn | {"structure": drawn["structure"] | read}
        structure = {
            "kind": "euler",
            "components": self.components.tolist(),
            "variance": self.variance,
            "grade": self.grade,
        }
        if self.drawn is not None:
            structure["drawn"] = self.drawn.tolist()
        if self.total is not None:
            structure["total"] = self.total._asdict()
        return {"domain": self.domain.to_release(), "structure": structure}

    @classmethod
    def from_release(cls, document: dict[str, Any]) -> Self:
        """Histogram of a release document; raises :class:`~dpcore.spatial.histogram.HistogramError` for any other."""
        try:
            structure = document["structure"]
            kind = structure["kind"]
            if kind != "euler":
                raise HistogramError(f"structure of kind {kind!r}; this reads euler")
            components = np.asarray(structure["components"], dtype=np.int64)
            grade = cast("Grade", structure["grade"])
            drawn = np.asarray(structure["drawn"], dtype=np.int64) if "drawn" in structure else None
            paid = structure.get("total")
            total = None if paid is None else Total(int(paid["value"]), float(paid["variance"]))
            domain, variance = Domain.from_release(document["domain"]), float(structure["variance"])
            if "reading" in structure:
                if (structure["reading"], grade) != ("truncated", "noisy"):
                    raise HistogramError(
                        f"reading {structure['reading']!r} of counts of grade {grade!r}; this reads truncated of noisy "
                        "ones"
                    )
                return cls(domain, truncated(components), variance, "truncated", components)
            if "ordered" in structure:
                if grade != "noisy":
                    raise HistogramError(
                        f"ordered counts beside counts of grade {grade!r}; they stand beside noisy ones"
                    )
                ordered = np.asarray(structure["ordered"], dtype=np.int64)
                return cls(domain, ordered, variance, "ordered", components, total)
            return cls(domain, components, variance, grade, drawn, total)
        except (KeyError, TypeError, OverflowError) as error:
            raise HistogramError(f"release without a usable {error}; give the release of an Euler histogram") from None


def _inside(x0: IntGrid, x1: IntGrid, y0: IntGrid, y1: IntGrid) -> IntGrid:
    """Number of components strictly inside each block of cells."""
    inside: IntGrid = np.maximum(2 * (x1 - x0) - 1, 0) * np.maximum(2 * (y1 - y0) - 1, 0)
    return inside


@dataclass(frozen=True)
class Euler:
    """ε-DP counts of the regions that meet any rectangle of cells, for regions of diameter at most ``diameter`` (B).

    ``regions_per_user`` (r) multiplies the sensitivity; further regions of a user are left out. ``inference``: "none"
    releases the unbiased draws; "ordered" moves them to the nearest counts in the order that regions leave, negative or
    not; "truncated" sets negative ones to 0; "max-norm" moves them to consistent counts whose largest deviation from
    them is least; "consistent" and "covert" to the nearest counts that regions could have left. Programs are solved
    where the grid has at most :data:`MAX_INFERENCE_CELLS` cells. Where most components are empty, counts that may not
    be negative raise answers over many cells (research/reproductions.md). ``total_share`` of ε, at most 0.5, pays for
    the number of all regions where counts may be negative; the others do not use it, so the components have the whole ε
    there. Raises :class:`ParameterError`.
    """

    diameter: float
    regions_per_user: int = 1
    inference: Inference = "none"
    total_share: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.diameter) and self.diameter > 0):
            raise ParameterError(f"diameter {self.diameter} is not a positive length; give the public bound B")
        if self.regions_per_user < 1:
            raise ParameterError(f"{self.regions_per_user} regions per user; give at least 1")
        if self.inference not in get_args(Inference):
            raise ParameterError(f"inference {self.inference!r}; give one of {', '.join(get_args(Inference))}")
        if not 0 <= self.total_share <= 0.5:
            raise ParameterError(f"a share {self.total_share} of ε for the total; give one between 0 and 0.5")

    def sensitivity(self, domain: Domain) -> int:
        """r·(2k+1)², k = ⌈B/d⌉: the L1 change of the component counts when one user leaves."""
        return self.regions_per_user * Footprints.sensitivity(domain, self.diameter)

    def inference_on(self, domain: Domain) -> Inference:
        """What is made of draws on the grid of ``domain``: ``inference``, or "none" where it would take too long."""
        solvable = domain.cells <= MAX_INFERENCE_CELLS or self.inference in ("truncated", "max-norm")
        return self.inference if solvable else "none"

    def shares(self, domain: Domain, epsilon_micro: int) -> tuple[int, int]:
        """µε of the components and of the number of all regions, which together are ``epsilon_micro``.

        Raises :class:`ParameterError` where nothing is left for the components, or noise of such a scale cannot be
        drawn.
        """
        used = self.inference_on(domain) in ("none", "ordered")
        for_total = max(1, int(epsilon_micro * self.total_share)) if self.total_share and used else 0
        rest, sensitivity = epsilon_micro - for_total, self.sensitivity(domain)
        if rest < 1:
            raise ParameterError(f"a budget of {epsilon_micro} µε; give at least {1 + for_total}")
        if not can_draw(rest, sensitivity) or (for_total and not can_draw(for_total, self.regions_per_user)):
            raise ParameterError(
                f"a user may change the counts by {sensitivity}, and noise of that scale over {rest} µε cannot be "
                "drawn; lower the diameter, the regions per user or the number of rows and columns, or raise the budget"
            )
        return rest, for_total

    def fit(self, regions: Regions, domain: Domain, epsilon_micro: int, noise: Noise) -> EulerHistogram:
        """Spend exactly ``epsilon_micro`` µε on ``regions``, in the unit of length of ``domain``. Relation
        "participation".

        Regions are shrunk to the diameter, never refused. Inference is given the draws as they are: to set negative
        counts to 0 first makes no difference to "consistent" and "covert", and other counts of "max-norm".
        """
        for_components, for_total = self.shares(domain, epsilon_micro)
        sensitivity = self.sensitivity(domain)
        true = Footprints.of(regions.at_most(self.regions_per_user), domain, self.diameter).total()
        noisy = noisy_counts(true, for_components, sensitivity, noise)
        variance = laplace_variance(for_components, sensitivity)
        total = None
        if for_total:
            (value,) = noisy_counts(np.array([whole_of(true)]), for_total, self.regions_per_user, noise).tolist()
            total = Total(value, laplace_variance(for_total, self.regions_per_user))
        inferred = infer(noisy, self.inference_on(domain))
        drawn = None if inferred.grade == "noisy" else noisy
        return EulerHistogram(domain, inferred.components, variance, inferred.grade, drawn, total)
