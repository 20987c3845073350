"""What tests of relation "participation" share: a small configuration, and the exact loss between two windows."""

from fractions import Fraction
from pathlib import Path

import numpy as np

from stream.config import Config, load_config
from stream.statistics.participation.draw import layout_of
from stream.statistics.plan import Plan
from tests.support import hourly

SMALL = {"feed.domain": {"south": 30.15, "west": -97.85, "north": 30.55, "east": -97.55}, "hexagons.resolution": 7}
"""Settings of a small public list of cells."""


def riders(tmp_path: Path, **overrides: object) -> Config:
    """The hourly riders.toml over a small box at resolution 7, its key file in ``tmp_path``; overrides are dotted
    keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | SMALL
    return load_config(hourly.RIDERS, **(settings | overrides))


def scales_of_rows(plan: Plan) -> tuple[list[int], list[int]]:
    """Noise scale t/s of every released row."""
    rows = layout_of(plan.terms).rows
    t, s = (np.repeat(column, rows).tolist() for column in (plan.scales.numerator, plan.scales.denominator))
    return t, s


def loss(plan: Plan, one: np.ndarray, two: np.ndarray) -> Fraction:
    """Privacy loss between two windows' integers (R, C) of equal scales: Σ|Δ|·s/t in ε, under zCDP Σ Δ²·s²/(2t²) in
    ρ."""
    moved = one - two
    if not plan.gaussian:
        amounts = np.abs(moved).sum(axis=1).tolist()
        return sum((Fraction(m * s, t) for m, t, s in zip(amounts, *scales_of_rows(plan), strict=True)), Fraction(0))
    squares = [sum(m * m for m in row) for row in moved.tolist()]
    return sum(
        (Fraction(m * s * s, 2 * t * t) for m, t, s in zip(squares, *scales_of_rows(plan), strict=True)), Fraction(0)
    )
