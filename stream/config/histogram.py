"""Section ``[histogram]``: the spatial histograms that a window releases, their budget and their public grid."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from dpcore.accounting import rho_of_pure
from dpcore.budget import MICRO, BudgetSplit, from_micro, to_micro
from dpcore.errors import BudgetError, DPError
from stream.config.section import BoundingBox, Section

Mechanism = Literal[
    "auto",
    "uniform",
    "singular",
    "ug",
    "ag",
    "e2epriv",
    "quadtree",
    "kdtree",
    "privlet",
    "htf",
    "sparse",
    "euler",
]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)

Inference = Literal["none", "ordered", "truncated", "max-norm", "consistent", "covert"]
"""What "euler" makes of its draws, as in :data:`dpcore.spatial.euler_inference.Inference`."""

Parameters = dict[str, Any]
"""Arguments of a mechanism by name: numbers and text."""

Counts = Literal["consistent", "drawn"]
"""What a tree publishes: counts that agree along every path, by least squares, or those that were drawn."""

MAX_MESSAGE_BYTES = 900_000
"""Largest message that a configuration may lead to, in bytes; Kafka brokers refuse 1 MiB."""
_PARTITIONS = ("auto", "ag", "quadtree", "kdtree", "htf", "sparse")
_READ_TWICE = ("auto", "htf", "sparse")
"""Mechanisms that also publish a sparse reading under goal "relative"."""
_BYTES_PER_CELL = {"grid": 12, "partition": 50, "sparse reading": 24, "euler": 18}
"""Bytes of one number of at most seven digits; of one part with its sides, its variance and its share of the tree of
draws; of its two counts for relative error; of one component of "euler" before and after inference."""
_SIZED_BY = {
    "euler": "[histogram.euler] rows and columns",
    "e2epriv": "sizes, or rows and columns",
    "htf": "[histogram.htf] max_height, or rows and columns",
    "kdtree": "[histogram.kdtree] max_height, or rows and columns",
    "quadtree": "[histogram.quadtree] height, or rows and columns",
}
"""What decides how large a message of the mechanism is."""
MAX_SCALE = 1_000
"""Largest noise scale in points. With more noise a histogram is useless, shares within a mechanism could round to 0,
and numbers could exceed the assumed bytes."""


class EulerConfig(Section):
    """Regions of users: the convex hull of the ``nearest`` fixes around the place where a user mostly was, of bounded
    diameter.

    ``outliers``: a wider region is shrunk to the diameter, or fixes farther than half of it from that place are
    discarded. ``inference``: what the counts are made before they are published; "none" keeps answers unbiased,
    "truncated" publishes the draws and says that negative ones count as 0, "ordered" publishes beside the draws the
    nearest counts in which nothing is above what it borders, and "max-norm" moves no count further than is needed for
    consistent ones. ``total_share`` of the mechanism's ε pays for the number of all regions, where ``inference`` is
    "none" or "ordered". ``origin`` "declared": users declare their regions by the corners, events with one time; of
    each user's the last ``regions_per_user`` of a window count, and the noise is that of so many.
    """

    rows: int = Field(default=8, ge=1, le=64)
    columns: int = Field(default=8, ge=1, le=64)
    nearest: int = Field(default=12, ge=1, le=5760)
    diameter_m: float = Field(default=5_000.0, gt=0, le=1_000_000)
    bandwidth_m: float = Field(default=300.0, gt=0, le=1_000_000)
    outliers: Literal["shrink", "discard"] = "shrink"
    inference: Inference = "none"
    total_share: float = Field(default=0.05, ge=0, le=0.5)
    origin: Literal["fixes", "declared"] = "fixes"
    regions_per_user: int = Field(default=1, ge=1, le=100)

    @model_validator(mode="after")
    def _regions_have_one_definition(self) -> Self:
        if self.origin == "fixes" and self.regions_per_user > 1:
            raise ValueError(
                f"regions_per_user {self.regions_per_user} is for regions that users declare, because fixes make one "
                "region per "
                'user; set origin = "declared", or leave regions_per_user out'
            )
        unread = [name for name in ("nearest", "bandwidth_m", "outliers") if name in self.model_fields_set]
        if self.origin == "declared" and unread:
            raise ValueError(
                f'{", ".join(unread)}: of regions from fixes, and origin is "declared"; leave one of both out'
            )
        return self

    @model_validator(mode="after")
    def _total_is_used(self) -> Self:
        if (
            self.inference not in ("none", "ordered")
            and self.total_share > 0
            and "total_share" in self.model_fields_set
        ):
            raise ValueError(
                f"total_share {self.total_share} pays for a number that inference {self.inference!r} does not use; "
                "leave "
                'total_share out, or write inference = "none" or "ordered"'
            )
        return self


class E2EPrivConfig(Section):
    """How "e2epriv" chooses its size: ``size_share`` of ε; errors divide by ρ at least, ``rho`` or ``rho_share`` of all
    points.

    ``total_share`` of ε pays for the number of all points. ``objective`` "relative" is the source's: errors are
    relative to the true counts and cut at ``cap``; "weighted": relative to what the areas of the ranges let expect.
    ``tuning_areas``: shares of the box that the tuning queries cover as squares; without any they are random ranges.
    """

    objective: Literal["weighted", "relative"] = "weighted"
    size_share: float = Field(default=0.2, ge=0.05, le=0.9)
    total_share: float = Field(default=0.02, ge=0.01, le=0.5)
    cap: float = Field(default=4.0, ge=0.1, le=1000)
    rho: float = Field(default=20.0, ge=1, le=1_000_000)
    rho_share: float = Field(default=0.01, ge=0, le=1)
    tuning_areas: tuple[Annotated[float, Field(gt=0, le=1)], ...] = ()

    @model_validator(mode="after")
    def _cap_is_used(self) -> Self:
        if self.cap != type(self).model_fields["cap"].default and self.objective == "weighted":
            raise ValueError(
                f'cap {self.cap} is for objective "relative", but that is "weighted"; leave cap out, or write '
                'objective = "relative"'
            )
        return self

    @property
    def parameters(self) -> Parameters:
        """Arguments of :class:`~dpcore.spatial.e2epriv.E2EPriv`."""
        # Left out where it is the default: earlier workers refuse it.
        by_default = {"objective"} if self.objective == "weighted" else set()
        return self.model_dump(exclude={"tuning_areas"} | by_default)


class HTFConfig(Section):
    """How "htf" grows: cuts by ``split`` in at most ``rounds`` (0: as many as needed), at most ``max_height`` levels, a
    node stops at ``stop_cells`` cells or ``stop_count`` points; ``height_share`` of ε, or ``height_epsilon``
    (ε_height), for the number of points, on which the height depends, ``split_share`` for cuts, or ``level_epsilon``
    (ε′) for the cuts of each level, ``stop_share`` of the rest for stops. ``counts``: made "consistent", or published
    as "drawn". Every path costs ε, whatever the height.
    """

    split: Literal["exponential", "search"] = "exponential"
    rounds: int = Field(default=0, ge=0, le=10)
    max_height: int = Field(default=20, ge=1, le=20)
    margin: float = Field(default=0.45, ge=0, le=0.5)
    extra_levels: int = Field(default=2, ge=0, le=20)
    stop_cells: int = Field(default=1, ge=1, le=1_000_000)
    stop_count: float = Field(default=20.0, ge=0, le=1_000_000)
    height_share: float = Field(default=0.01, ge=0.001, le=0.1)
    height_epsilon: float = Field(default=0.0, ge=0, le=10)
    split_share: float = Field(default=0.1, ge=0.01, le=0.8)
    level_epsilon: float = Field(default=0.0, ge=0, le=10)
    stop_share: float = Field(default=0.6, ge=0.01, le=0.95)
    counts: Counts = "consistent"

    @model_validator(mode="after")
    def _cuts_are_paid_once(self) -> Self:
        for name, other in (("level_epsilon", "split_share"), ("height_epsilon", "height_share")):
            if 0 < getattr(self, name) * MICRO < 1:
                raise ValueError(f"{name} {getattr(self, name)} is below 1e-6; give 1e-6 or more, or 0 for {other}")
        if self.level_epsilon and self.split_share != type(self).model_fields["split_share"].default:
            raise ValueError(
                f"level_epsilon {self.level_epsilon} pays for the cuts of each level, so split_share "
                f"{self.split_share} would buy "
                "nothing; leave one of them out"
            )
        if self.height_epsilon and self.height_share != type(self).model_fields["height_share"].default:
            raise ValueError(
                f"height_epsilon {self.height_epsilon} pays for the number of points, so height_share "
                f"{self.height_share} would "
                "buy nothing; leave one of them out"
            )
        return self

    @property
    def parameters(self) -> Parameters:
        """Arguments of :class:`~dpcore.spatial.htf.HTF`."""
        own = {
            "level_epsilon_micro": to_micro(self.level_epsilon, round_up=False) if self.level_epsilon else 0,
            "consistency": self.counts == "consistent",
        }
        if self.height_epsilon:  # left out where it is the default: earlier workers refuse it
            own["height_epsilon_micro"] = to_micro(self.height_epsilon, round_up=False)
        return self.model_dump(exclude={"level_epsilon", "height_epsilon", "counts"}) | own

    @property
    def remedy(self) -> str:
        """What lets ε pay for a tree besides fewer levels."""
        shares = "raise epsilon or the shares of what is short"
        return f"lower level_epsilon, or {shares}" if self.level_epsilon else shares

    def pay(self, epsilon_micro: int, height: int) -> None:
        """Raise ``DPError`` if the levels of a tree of ``height`` cannot be paid for."""
        from dpcore.spatial.htf import HTF  # scipy comes with it, which other configurations save

        tree = HTF(**self.parameters)
        tree.path_budget(tree.parts(epsilon_micro)[1], height)


class QuadTreeConfig(Section):
    """Budgets of the levels of "quadtree", its height, without which it goes down to single cells, and whether its
    counts are made "consistent" or published as "drawn".
    """

    budget: Literal["uniform", "geometric"] = "geometric"
    height: int | None = Field(default=None, ge=0, le=10)
    counts: Counts = "consistent"

    @property
    def parameters(self) -> Parameters:
        """Arguments of :class:`~dpcore.spatial.trees.QuadTree`."""
        return self.model_dump(exclude={"counts"}) | {"consistency": self.counts == "consistent"}


class KdTreeConfig(Section):
    """Budgets of the levels of "kdtree", the most levels it may have, and its counts as for "quadtree".

    ``split_share`` of ε pays for the medians, ``total_share`` for the number of points, on which the height depends.
    """

    budget: Literal["uniform", "geometric"] = "geometric"
    max_height: int = Field(default=16, ge=1, le=16)
    split_share: float = Field(default=0.3, ge=0.01, le=0.9)
    total_share: float = Field(default=0.01, ge=0.001, le=0.1)
    counts: Counts = "consistent"

    @property
    def parameters(self) -> Parameters:
        """Arguments of :class:`~dpcore.spatial.trees.KdTree`."""
        return self.model_dump(exclude={"counts"}) | {"consistency": self.counts == "consistent"}

    remedy: ClassVar[str] = "raise epsilon or the shares of what is short"

    def pay(self, epsilon_micro: int, height: int) -> None:
        """Raise ``DPError`` if the levels of a tree of ``height`` cannot be paid for."""
        from dpcore.spatial.trees import KdTree  # scipy comes with it

        tree = KdTree(**self.parameters)
        _, split_micro, data_micro = tree.parts(epsilon_micro)
        tree.level_shares(split_micro, data_micro, height)


class HistogramConfig(Section):
    """Spatial histograms of every window. Each protects participation, under either relation."""

    mechanisms: tuple[Mechanism, ...] = Field(min_length=1)
    epsilon: float = Field(gt=0, le=1000)
    shares: dict[Mechanism, float] = Field(default_factory=dict)
    goal: Literal["absolute", "relative"] = "absolute"
    fixes_per_user: int = Field(default=1, ge=1, le=100)
    domain: BoundingBox | None = None
    rows: int = Field(default=64, ge=1, le=1024)
    columns: int = Field(default=64, ge=1, le=1024)
    sizes: tuple[int, ...] = ()
    tuning_queries: int = Field(default=600, ge=1, le=10_000)
    euler: EulerConfig | None = None
    e2epriv: E2EPrivConfig | None = None
    htf: HTFConfig | None = None
    quadtree: QuadTreeConfig | None = None
    kdtree: KdTreeConfig | None = None

    @model_validator(mode="after")
    def _mechanisms_fit(self) -> Self:
        if len(set(self.mechanisms)) != len(self.mechanisms):
            raise ValueError(f"mechanisms {list(self.mechanisms)} names a mechanism twice; name each once")
        if ("euler" in self.mechanisms) != (self.euler is not None):
            raise ValueError("mechanism 'euler' and [histogram.euler] go together; give both or neither")
        unknown = sorted(set(self.shares) - set(self.mechanisms))
        if unknown:
            raise ValueError(f"shares names {unknown}, but mechanisms are {list(self.mechanisms)}; name only those")
        if self.shares and (
            set(self.shares) != set(self.mechanisms)
            or not all(math.isfinite(share) and share > 0 for share in self.shares.values())
        ):
            raise ValueError("shares must give every mechanism a number above 0; leave shares out to share equally")
        if any(not 1 <= size <= max(self.rows, self.columns) for size in self.sizes):
            raise ValueError(
                f"sizes {list(self.sizes)} must lie between 1 and the {max(self.rows, self.columns)} cells per side of "
                "the grid"
            )
        return self

    @model_validator(mode="after")
    def _budgets_suffice(self) -> Self:
        try:
            epsilons = self.epsilons_micro
        except BudgetError:
            raise ValueError(
                f"epsilon {self.epsilon} shared by {len(self.mechanisms)} mechanisms leaves one of them less than "
                "1e-6; raise epsilon"
            ) from None
        for name, micro in epsilons.items():
            if micro * MAX_SCALE < self.fixes_per_user * MICRO:
                raise ValueError(
                    f"epsilon {self.epsilon} leaves {name!r} {from_micro(micro)} for {self.fixes_per_user} fixes per "
                    "user, so its "
                    f"noise would exceed {MAX_SCALE} points; raise epsilon, or lower fixes_per_user or the number of "
                    "mechanisms"
                )
        regions = 1 if self.euler is None else self.euler.regions_per_user
        if regions > 1 and epsilons["euler"] * MAX_SCALE < regions * MICRO:
            raise ValueError(
                f"epsilon {self.epsilon} leaves 'euler' {from_micro(epsilons['euler'])} for {regions} regions per "
                "user, so its noise "
                f"would exceed {MAX_SCALE} regions; raise epsilon, or lower histogram.euler.regions_per_user"
            )
        return self

    @model_validator(mode="after")
    def _parameters_can_be_drawn(self) -> Self:
        for name in ("e2epriv", "htf", "quadtree", "kdtree"):
            if getattr(self, name) is not None and name not in self.mechanisms:
                raise ValueError(
                    f"[histogram.{name}] is given, but mechanisms lack {name!r}; name it or leave the table out"
                )
        # Users are charged before the draw, and the noisy number of points decides the height: any must be affordable.
        trees: dict[Mechanism, HTFConfig | KdTreeConfig | None] = {"htf": self.htf, "kdtree": self.kdtree}
        for mechanism, tree in trees.items():
            if tree is None:
                continue
            for height in range(1, tree.max_height + 1):
                self._pay(mechanism, tree, height)
        return self

    def _pay(self, mechanism: Mechanism, tree: HTFConfig | KdTreeConfig, height: int) -> None:
        micro = self.epsilons_micro[mechanism]
        try:
            tree.pay(micro, height)
        except DPError:
            fewer = f"lower max_height {tree.max_height} below {height}, " if height > 1 else ""
            raise ValueError(
                f"[histogram.{mechanism}]: its epsilon of {from_micro(micro)} does not pay for a tree of height "
                f"{height}, which the noisy "
                f"number of points may ask for: a part of it would have less than 1e-6; {fewer}{tree.remedy}"
            ) from None

    @model_validator(mode="after")
    def _messages_fit(self) -> Self:
        for name in self.mechanisms:
            size = self.largest_message(name)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(
                    f"a message of {name!r} on this grid may take {size} bytes, above {MAX_MESSAGE_BYTES} (brokers "
                    "refuse "
                    f"1 MiB); lower {_SIZED_BY.get(name, 'rows and columns')}"
                )
        return self

    def check_regions(self, box: BoundingBox) -> None:
        """Raise ``ValueError`` if the noise of "euler" on ``box`` cannot be drawn: users are charged before the
        draw."""
        if self.euler is None:
            return
        from dpcore.spatial import Domain  # scipy comes with it
        from dpcore.spatial.euler import Euler

        euler, micro = self.euler, self.epsilons_micro["euler"]
        mechanism = Euler(euler.diameter_m, euler.regions_per_user, euler.inference, euler.total_share)
        domain = Domain(box.south, box.west, box.north, box.east, euler.rows, euler.columns).in_metres()
        try:
            mechanism.shares(domain, micro)
        except DPError:
            raise ValueError(
                f"[histogram.euler]: a user may change the counts by {mechanism.sensitivity(domain)}, and noise of "
                "that scale over its epsilon "
                f"of {from_micro(micro)} cannot be drawn; lower diameter_m, regions_per_user, rows or columns, or "
                "raise epsilon"
            ) from None

    @property
    def parameters(self) -> dict[str, Parameters]:
        """Arguments of the mechanisms that have a table of their own, by name."""
        tables = {"htf": self.htf, "quadtree": self.quadtree, "kdtree": self.kdtree, "e2epriv": self.e2epriv}
        return {name: table.parameters for name, table in tables.items() if table is not None}

    @property
    def grid_sizes(self) -> tuple[int, ...]:
        """Sizes from which "e2epriv" chooses: the configured ones, else the powers of two that the grid allows."""
        side = max(self.rows, self.columns)
        return self.sizes or tuple(2**k for k in range(side.bit_length()))

    @property
    def declares_regions(self) -> bool:
        """Whether users declare the regions that "euler" counts."""
        return self.euler is not None and self.euler.origin == "declared"

    def largest_message(self, name: Mechanism) -> int:
        """Largest possible size of a message of the mechanism, in bytes: of the finest grid, or the most parts, it may
        release."""
        if name == "euler":
            assert self.euler is not None
            return (2 * self.euler.rows - 1) * (2 * self.euler.columns - 1) * _BYTES_PER_CELL["euler"]
        if name == "uniform":
            return _BYTES_PER_CELL["grid"]
        per_cell = _BYTES_PER_CELL["partition" if name in _PARTITIONS else "grid"]
        if self.goal == "relative" and name in _READ_TWICE:
            per_cell += _BYTES_PER_CELL["sparse reading"]
        return self._most_parts(name) * per_cell

    def _most_parts(self, name: Mechanism) -> int:
        """Most cells, or parts, that the mechanism may release."""
        cells = self.rows * self.columns
        if name == "e2epriv":
            size = max(self.grid_sizes)
            return min(size, self.rows) * min(size, self.columns)
        if name == "htf" and self.htf is not None:
            return int(min(cells, 2**self.htf.max_height))
        if name == "kdtree" and self.kdtree is not None:
            return int(min(cells, 2**self.kdtree.max_height))
        if name == "quadtree" and self.quadtree is not None and self.quadtree.height is not None:
            return int(min(cells, 4**self.quadtree.height))
        return cells

    @cached_property
    def epsilon_micro(self) -> int:
        """The most that one user may lose in one window by all histograms together, in µε."""
        return to_micro(self.epsilon, round_up=False)

    @cached_property
    def epsilons_micro(self) -> dict[Mechanism, int]:
        """µε of each mechanism, ordered by name; their sum is exactly :attr:`epsilon_micro`."""
        names = sorted(self.mechanisms)
        split = BudgetSplit.by_weights(self.epsilon_micro, [self.shares.get(name, 1.0) for name in names])
        return dict(zip(names, split.shares, strict=True))

    def cost(self, accounting: Literal["pure", "zcdp"]) -> int:
        """What a user who contributes pays in a window for all histograms, in µε, or in nρ under zCDP.

        Each histogram is ε_i-DP, hence ε_i²/2-zCDP; both kinds of loss add up over histograms.
        """
        if accounting == "pure":
            return self.epsilon_micro
        return sum(rho_of_pure(micro) for micro in self.epsilons_micro.values())
