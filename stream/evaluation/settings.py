"""The settings that ``hexveil tune`` chooses among, as changes of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from dpcore.relation import NeighbouringRelation
from stream.config import Config
from stream.config.speed import CLIPPED_NORMAL, MOMENTS

CELLS_PER_USER = (2, 4, 8, 16)
"""Limits k that are tried under "participation"."""


@dataclass(frozen=True)
class Setting:
    """Everything that is searched besides ε and the budget. ``weight``, ``cells_per_user``: only under "participation".

    ``post_processing``: as configured; what models percentiles is left out of :meth:`keys` where ``statistics`` are
    without what it needs.
    """

    resolution: int
    slot: timedelta
    statistics: tuple[str, ...]
    clipping: str
    suppression: str
    merge_until: float | None
    coarsest_resolution: int
    weight: str | None
    cells_per_user: int | None
    post_processing: tuple[str, ...]

    @classmethod
    def of(cls, config: Config) -> Self:
        """The settings of a configuration."""
        hexagons, speed, participation = config.hexagons, config.speed, config.participation
        return cls(
            resolution=hexagons.resolution,
            slot=config.window.slot,
            statistics=speed.statistics,
            clipping=speed.clipping,
            suppression=speed.suppression,
            merge_until=hexagons.merge_until,
            coarsest_resolution=hexagons.coarsest_resolution,
            weight=None if participation is None else participation.weight,
            cells_per_user=None if participation is None else participation.cells_per_user,
            post_processing=speed.post_processing,
        )

    def keys(self) -> dict[str, Any]:
        """All settings by their dotted keys in a configuration."""
        refused = set() if set(MOMENTS) <= set(self.statistics) else {CLIPPED_NORMAL}
        return {
            "hexagons.resolution": self.resolution,
            "hexagons.merge_until": self.merge_until,
            "hexagons.coarsest_resolution": self.coarsest_resolution,
            "window.slot": self.slot,
            "speed.statistics": self.statistics,
            "speed.clipping": self.clipping,
            "speed.suppression": self.suppression,
            "speed.post_processing": tuple(name for name in self.post_processing if name not in refused),
            "participation.weight": self.weight,
            "participation.cells_per_user": self.cells_per_user,
        }

    def changes_of(self, config: Config) -> dict[str, Any]:
        """Dotted keys of ``config`` that these settings change, with their new values."""
        base = Setting.of(config).keys()
        return {key: value for key, value in self.keys().items() if base[key] != value}

    def applied(self, config: Config) -> Config:
        """``config`` with these settings."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.changes_of(config).items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        return config.model_copy(
            update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
        )

    @property
    def words(self) -> str:
        """The settings besides the grid, in a few words."""
        words = ["+".join(self.statistics), f"clipping {self.clipping}"]
        if self.weight is not None:
            words.append(f"weight {self.weight}, k = {self.cells_per_user}")
        else:
            words.append(f"suppression {self.suppression}")
        if self.merge_until is not None:
            words.append(f"merged until ±{self.merge_until:g} down to {self.coarsest_resolution}")
        return ", ".join(words)


def alternatives(setting: Setting, config: Config, half_width: float | None) -> Iterator[Setting]:
    """Settings on the same grid that differ from ``setting`` in one thing, each sound under the relation of ``config``.

    ``half_width``: hexagons may be merged until the raw mean is so narrow, in km/h; None: they are not.
    """
    speed = config.speed
    if config.relation == NeighbouringRelation.VALUES:
        if speed.mean_mechanism != "allocated":
            return
        if setting.clipping == "none" and not speed.sum_cap and "kalman" in speed.post_processing:
            yield replace(setting, clipping="residual")
        yield replace(setting, suppression="none" if setting.suppression == "chop-user" else "chop-user")
        if half_width is not None and setting.merge_until is None and setting.resolution > 0:
            yield replace(setting, merge_until=half_width, coarsest_resolution=setting.resolution - 1)
        return
    if setting.clipping == "none" and "kalman" in speed.post_processing and "variance" not in setting.statistics:
        yield replace(setting, clipping="residual")
    for cells in CELLS_PER_USER:
        if cells != setting.cells_per_user:
            yield replace(setting, cells_per_user=cells)
    if setting.weight != "share":
        yield replace(setting, weight="share")
    elif config.participation is None or not config.participation.area_share:  # which needs weight "share"
        yield replace(setting, weight="user", cells_per_user=1)
