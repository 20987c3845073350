"""Section ``[histogram]``: the spatial histograms that a window releases, their budget and their public grid."""

import math
from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from typing import Any, Literal, get_args

from pydantic import Field

from dpcore.accounting import rho_of_pure
from dpcore.budget import MICRO, BudgetSplit, from_micro, to_micro
from dpcore.errors import BudgetError, DPError
from dpcore.packing import MOST_LISTED
from stream.config.section import BoundingBox, Section

Mechanism = Literal[
    "auto", "uniform", "singular", "ug", "ag", "e2epriv", "quadtree", "kdtree", "privlet", "htf", "sparse", "euler"
]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)

Inference = Literal["none", "ordered", "truncated", "max-norm", "consistent", "covert"]
"""What "euler" makes of its draws, as in :data:`dpcore.spatial.euler_inference.Inference`."""

Preset = Literal["tuned", "paper"]
"""Parameters of a mechanism: those that measured best here, or its paper's own. The library takes any others."""

Parameters = dict[str, Any]
"""Arguments of a mechanism by name: numbers and text."""

TUNING_QUERIES = 600
"""Ranges by which "e2epriv" judges its sizes."""
PAPER_TUNING_AREAS = (0.01, 0.04, 0.09, 0.16, 0.25, 0.64)
"""Shares of the box that the squares cover by which the paper of "e2epriv" judges them, in place of random ranges."""
REGIONS: dict[Preset, Parameters] = {
    "tuned": {"nearest": 12, "bandwidth_m": 300.0, "outliers": "shrink", "inference": "none", "total_share": 0.05},
    "paper": {"nearest": 5760, "bandwidth_m": 300.0, "outliers": "discard", "inference": "covert", "total_share": 0.0},
}
"""How regions follow from fixes, and what "euler" makes of its draws."""
_TALLEST = {"htf": 20, "kdtree": 16, "quadtree": 10}
"""Most levels of a tree below its root, where a message has room for them."""

MAX_MESSAGE_BYTES = 900_000
"""Largest message that a configuration may lead to, in bytes; Kafka brokers refuse 1 MiB."""
_PACKED = ("ug", "singular", "e2epriv")
"""Mechanisms whose grids are packed where they are fine: their draws are whole and independent."""
_PARTITIONS = ("auto", "ag", "quadtree", "kdtree", "htf", "sparse")
_READ_TWICE = ("auto", "htf", "sparse")
"""Mechanisms that also publish a sparse reading under goal "relative"."""
_BYTES_PER_CELL = {"grid": 12, "partition": 50, "sparse reading": 24, "euler": 18}
"""Bytes of one number of at most seven digits; of one part with its sides, its variance and its share of the tree of
draws; of its two counts for relative error; of one component of "euler" before and after inference."""
MAX_SCALE = 1_000
"""Largest noise scale in points. With more noise a histogram is useless, shares within a mechanism could round to 0,
and numbers could exceed the assumed bytes."""


class EulerConfig(Section):
    """The grid of "euler", the bound on the diameter of a region, and where regions come from.

    ``origin`` "fixes": the convex hull of the fixes around the place where a user mostly was. "declared": users declare
    their regions by the corners, events with one time; of each user's the last ``regions_per_user`` of a window count,
    and the noise is that of so many.
    """

    rows: int = Field(default=8, ge=1, le=64)
    columns: int = Field(default=8, ge=1, le=64)
    diameter_m: float = Field(default=5_000.0, gt=0, le=1_000_000)
    origin: Literal["fixes", "declared"] = "fixes"
    regions_per_user: int = Field(default=1, ge=1, le=100)

    def _problems(self) -> Iterator[str]:
        if self.origin == "fixes" and self.regions_per_user > 1:
            yield (
                f"regions_per_user {self.regions_per_user} is for regions that users declare, because fixes make one "
                'region per user; set origin = "declared", or leave regions_per_user out'
            )


class HistogramConfig(Section):
    """Spatial histograms of every window, which share ``epsilon`` equally. Each protects participation.

    ``preset``: by mechanism, its parameters; "tuned" where none is named.
    """

    mechanisms: tuple[Mechanism, ...] = Field(min_length=1)
    epsilon: float = Field(gt=0, le=1000)
    preset: dict[Literal["e2epriv", "euler", "htf"], Preset] = Field(default_factory=dict)
    goal: Literal["absolute", "relative"] = "absolute"
    fixes_per_user: int = Field(default=1, ge=1, le=100)
    domain: BoundingBox | None = None
    rows: int = Field(default=64, ge=1, le=1024)
    columns: int = Field(default=64, ge=1, le=1024)
    euler: EulerConfig | None = None

    def _problems(self) -> Iterator[str]:
        yield from self._problems_of_mechanisms()
        yield from self._problems_of_budgets()
        yield from self._problems_of_the_published_tree()
        yield from self._problems_of_messages()

    def _problems_of_mechanisms(self) -> Iterator[str]:
        if len(set(self.mechanisms)) != len(self.mechanisms):
            yield f"mechanisms {list(self.mechanisms)} names a mechanism twice; name each once"
        if ("euler" in self.mechanisms) != (self.euler is not None):
            yield "mechanism 'euler' and [histogram.euler] go together; give both or neither"
        unknown = sorted(set(self.preset) - set(self.mechanisms))
        if unknown:
            yield f"preset names {unknown}, but mechanisms are {list(self.mechanisms)}; name only those"

    def _problems_of_budgets(self) -> Iterator[str]:
        try:
            epsilons = self.epsilons_micro
        except BudgetError:
            yield (
                f"epsilon {self.epsilon} shared by {len(self.mechanisms)} mechanisms leaves one of them less than "
                "1e-6; raise epsilon"
            )
        for name, micro in epsilons.items():
            if micro * MAX_SCALE < self.fixes_per_user * MICRO:
                yield (
                    f"epsilon {self.epsilon} leaves {name!r} {from_micro(micro)} for {self.fixes_per_user} fixes per "
                    f"user, so its noise would exceed {MAX_SCALE} points; raise epsilon, or lower fixes_per_user or "
                    "the number of mechanisms"
                )
        regions = 1 if self.euler is None else self.euler.regions_per_user
        if regions > 1 and epsilons["euler"] * MAX_SCALE < regions * MICRO:
            yield (
                f"epsilon {self.epsilon} leaves 'euler' {from_micro(epsilons['euler'])} for {regions} regions per "
                "user, so its noise "
                f"would exceed {MAX_SCALE} regions; raise epsilon, or lower histogram.euler.regions_per_user"
            )

    def _problems_of_the_published_tree(self) -> Iterator[str]:
        # Users are charged before the draw, and the noisy number of points decides the height: any must be affordable.
        if self.preset.get("htf") != "paper":
            return
        from dpcore.spatial.htf import HTF  # scipy comes with it, which other configurations save

        tree, micro = HTF.published(), self.epsilons_micro["htf"]
        try:
            for height in range(1, self._levels("htf") + 1):
                tree.path_budget(tree.parts(micro)[1], height)
        except DPError:
            yield (
                f"preset of htf 'paper': an epsilon of {from_micro(micro)} does not pay for a tree of height {height}, "
                "which the noisy number of points may ask for; raise epsilon, or choose 'tuned'"
            )

    def _problems_of_messages(self) -> Iterator[str]:
        for name in self.mechanisms:
            if name in _PACKED and self._most_parts(name) > (most := self._most_packed(name)):
                yield (
                    f"a message has room for the noise of {most} cells of {name!r} at its epsilon, and this grid has "
                    f"{self.rows * self.columns}; lower its rows and columns, or raise epsilon"
                )
            size = self.largest_message(name)
            if size > MAX_MESSAGE_BYTES:
                yield (
                    f"a message of {name!r} on this grid may take {size} bytes, above {MAX_MESSAGE_BYTES} "
                    "(brokers refuse 1 MiB); lower its rows and columns"
                )

    def check_regions(self, box: BoundingBox) -> None:
        """Raise ``ValueError`` if the noise of "euler" on ``box`` cannot be drawn: users pay before the draw."""
        if self.euler is None:
            return
        from dpcore.spatial import Domain  # scipy comes with it
        from dpcore.spatial.euler import Euler

        euler, micro = self.euler, self.epsilons_micro["euler"]
        regions = self.region_rules
        mechanism = Euler(euler.diameter_m, euler.regions_per_user, regions["inference"], regions["total_share"])
        domain = Domain(box.south, box.west, box.north, box.east, euler.rows, euler.columns).in_metres()
        try:
            mechanism.shares(domain, micro)
        except DPError:
            raise ValueError(
                f"[histogram.euler]: a user may change the counts by {mechanism.sensitivity(domain)}, and noise of "
                f"that scale over its epsilon of {from_micro(micro)} cannot be drawn; lower diameter_m, "
                "regions_per_user, rows or columns, or raise epsilon"
            ) from None

    @property
    def region_rules(self) -> Parameters:
        """How regions follow from fixes, and what "euler" makes of its draws."""
        return REGIONS[self.preset.get("euler", "tuned")]

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Arguments of mechanisms other than the library's defaults, by name."""
        given: dict[str, Parameters] = {}
        if self.preset.get("e2epriv") == "paper":
            given["e2epriv"] = {"objective": "relative"}
        if self.preset.get("htf") == "paper":
            from dpcore.spatial.htf import HTF  # scipy comes with it, which other configurations save

            tree = HTF.published()
            given["htf"] = {
                field.name: value for field in fields(tree) if (value := getattr(tree, field.name)) != field.default
            }
        for name, key in (("htf", "max_height"), ("kdtree", "max_height"), ("quadtree", "height")):
            if name in self.mechanisms and self._levels(name) < _TALLEST[name]:
                given.setdefault(name, {})[key] = self._levels(name)
        return given

    @property
    def tuning_areas(self) -> tuple[float, ...]:
        """Shares of the box by whose squares "e2epriv" judges its sizes; without any by random ranges."""
        return PAPER_TUNING_AREAS if self.preset.get("e2epriv") == "paper" else ()

    @property
    def grid_sizes(self) -> tuple[int, ...]:
        """Sizes from which "e2epriv" chooses: the powers of two from 2 that the grid and a message allow."""
        side, most = max(self.rows, self.columns), self._most_packed("e2epriv")
        powers = (2**k for k in range(1, side.bit_length()))
        return tuple(size for size in powers if min(size, self.rows) * min(size, self.columns) <= most) or (1,)

    def _most_packed(self, name: Mechanism) -> int:
        """Most cells of a packed grid: discrete Laplace noise of scale λ has log₂(2eλ) bits a cell, one more is for
        what counts add, and base64 has six in a byte. Where counts add more, the release joins its cells."""
        epsilon = self.epsilons_micro.get(name, self.epsilon_micro)
        bits = 1 + max(math.log2(2 * math.e * self.fixes_per_user * MICRO / epsilon), 3.0)
        return max(MOST_LISTED, int(MAX_MESSAGE_BYTES * 6 / bits))

    def _levels(self, name: Mechanism) -> int:
        """Most levels of a tree below its root: fewer than it may have only where a message cannot hold every cell."""
        most = MAX_MESSAGE_BYTES // self._bytes_per_part(name)
        if self.rows * self.columns <= most:
            return _TALLEST[name]
        return min(_TALLEST[name], (most.bit_length() - 1) // (2 if name == "quadtree" else 1))

    @property
    def declares_regions(self) -> bool:
        """Whether users declare the regions that "euler" counts."""
        return self.euler is not None and self.euler.origin == "declared"

    def largest_message(self, name: Mechanism) -> int:
        """Largest possible size of a message of the mechanism, in bytes: of the finest grid or most parts."""
        if name == "euler":
            assert self.euler is not None
            return (2 * self.euler.rows - 1) * (2 * self.euler.columns - 1) * _BYTES_PER_CELL["euler"]
        if name == "uniform":
            return _BYTES_PER_CELL["grid"]
        if name in _PACKED and self._most_parts(name) > MOST_LISTED:
            return MAX_MESSAGE_BYTES
        return self._most_parts(name) * self._bytes_per_part(name)

    def _bytes_per_part(self, name: Mechanism) -> int:
        per_cell = _BYTES_PER_CELL["partition" if name in _PARTITIONS else "grid"]
        return per_cell + (_BYTES_PER_CELL["sparse reading"] if self.goal == "relative" and name in _READ_TWICE else 0)

    def _most_parts(self, name: Mechanism) -> int:
        """Most cells, or parts, that the mechanism may release."""
        cells = self.rows * self.columns
        if name == "e2epriv":
            size = max(self.grid_sizes)
            return min(size, self.rows) * min(size, self.columns)
        return min(cells, (4 if name == "quadtree" else 2) ** self._levels(name)) if name in _TALLEST else cells

    @cached_property
    def epsilon_micro(self) -> int:
        """The most that one user may lose in one window by all histograms together, in µε."""
        return to_micro(self.epsilon, round_up=False)

    @cached_property
    def epsilons_micro(self) -> dict[Mechanism, int]:
        """µε of each mechanism, ordered by name; their sum is exactly :attr:`epsilon_micro`."""
        names = sorted(self.mechanisms)
        split = BudgetSplit.by_weights(self.epsilon_micro, [1.0] * len(names))
        return dict(zip(names, split.shares, strict=True))

    def cost(self, accounting: Literal["pure", "zcdp"]) -> int:
        """What a user who contributes pays in a window for all histograms, in µε, or in nρ under zCDP.

        Each histogram is ε_i-DP, hence ε_i²/2-zCDP; both kinds of loss add up over histograms.
        """
        if accounting == "pure":
            return self.epsilon_micro
        return sum(rho_of_pure(micro) for micro in self.epsilons_micro.values())
