"""Numbers and evidence of docs/privacy.md are those of the code."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import NANO, epsilon_of_rho
from dpcore.noise import Noise
from dpcore.participation import UNIT
from stream.config import Config, load_config
from stream.config.privacy import MAX_DELTA
from stream.config.promise import COMPARATORS, factor, percent, posterior
from stream.config.public_cells import public_cells
from stream.local.kafka import REPO_ROOT
from stream.statistics.participation.draw import draw_participation, participation_of
from stream.storage.row_store import ROW
from stream.terms import Terms
from tests.support import hourly
from tests.support.releasing import planned

PAGE = (REPO_ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")


def row(question: str) -> list[str]:
    """Cells of the one table row that begins with ``question``."""
    (table_row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {question} |")]
    return [cell.strip() for cell in table_row.strip("|").split("|")][1:]


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 8, 12])
def test_what_a_budget_means_for_beliefs(budget):
    def after(prior: float) -> float:
        return math.exp(budget) * prior / (1 + math.expm1(budget) * prior)

    assert row(str(budget)) == [factor(budget), *(percent(after(prior)) for prior in (0.001, 0.01, 0.5))]
    assert posterior(0.01, budget) == pytest.approx(after(0.01), rel=1e-12)


def test_comparators_are_those_of_the_sheet():
    for known in COMPARATORS:
        epsilon, unit = row(known.what)
        assert epsilon == known.epsilon
        assert unit.startswith(known.unit)
        assert known.source.removeprefix("arXiv:").split(",")[0] in unit


def shipped_riders(tmp_path: Path, **overrides: Any) -> Config:
    """config/riders-live.toml with its key file in ``tmp_path``; overrides are dotted keys."""
    settings = {"privacy.user_key_file": str(tmp_path / "user.key")} | overrides
    return load_config(REPO_ROOT / "config" / "riders-live.toml", **settings)


def half_width(config: Config, name: str) -> float:
    """Half of the 95 % interval of a count in a released window."""
    plan, contributions = planned(config, np.zeros(0, dtype=ROW))
    column = draw_participation(plan, contributions, Noise())[name]
    return float(((column.high - column.low) / 2)[0])


def test_the_worked_example_is_what_the_configuration_does(tmp_path):
    config = shipped_riders(tmp_path)
    privacy = config.privacy
    assert (privacy.budget, privacy.delta) == (4.0, 1e-6)
    windows, full = privacy.period // config.window.slot, privacy.ledger_budget // privacy.ledger_grant
    assert row("Windows of a day; paid in full") == [f"{windows}; {full}"]
    assert row("Messages of a window, visited or not") == [f"{len(public_cells(config))} cells and one close marker"]
    commuter = epsilon_of_rho(6 * privacy.ledger_grant // 5, privacy.delta)
    assert row("A commuter of 6 windows, each in 5 hexagons alike, pays") == [f"{commuter:.1f} of {privacy.budget:g}"]
    said = f"it counts in {full} windows spent in one hexagon each, in {5 * full} spent in 5"
    assert row("A taxi on the road all day pays") == [f"{privacy.budget:g} of {privacy.budget:g}: {said}"]
    t, s = participation_of(Terms.of(config)).scales
    assert participation_of(Terms.of(config)).layout.rows.tolist() == [2]
    assert row("Noise (standard deviation) of the two numbers of a cell, in users") == [f"{t[0] / s[0] / UNIT:.1f}"]
    assert row("95 % interval of the number of users in a cell") == [f"± {half_width(config, 'users'):.1f}"]
    user = shipped_riders(tmp_path, **{"participation.weight": "user"})
    assert row('The same with `weight = "user"` (each of 8 cells counts them fully)') == [
        f"± {half_width(user, 'users'):.1f}"
    ]
    sample = shipped_riders(tmp_path, **{"participation.weight": "sample"})
    cells = row('The same with `weight = "sample"`, 5 samples in each of 8 cells, number of events')
    assert cells == [f"± {half_width(sample, 'events'):.1f}"]
    assert sample.participation is not None
    assert (sample.participation.cells_per_user, sample.participation.samples_per_cell) == (8, 5)


def test_what_a_histogram_adds_is_what_it_is_charged(tmp_path):
    config = shipped_riders(tmp_path, histogram={"mechanisms": ["ug"], "epsilon": 0.5})
    whole = config.privacy.ledger_grant + config.histogram_grant
    full = config.privacy.ledger_budget // whole
    said = f"a window costs ρ = {whole / NANO:.3f}, and B = {config.privacy.budget:g} (ρ = "
    assert f"{said}{config.privacy.ledger_budget / NANO:.3f}) pays {full} of them" in " ".join(PAGE.split())


def test_the_zcdp_promise_is_what_every_release_states(tmp_path):
    (block,) = re.findall(r"```toml\n(\[privacy\]\naccounting[^`]*)```", PAGE)
    given = tomllib.loads(block)["privacy"]
    config = load_config(hourly.RIDERS, privacy=given | {"user_key_file": str(tmp_path / "user.key")})
    assert row("ε of one window at δ = 10⁻⁶") == [f"{config.privacy.epsilon}"]
    assert row("ε of the period (B) at δ = 10⁻⁶") == [f"{config.privacy.budget}"]
    full = config.privacy.ledger_budget // config.privacy.ledger_grant
    added = full * epsilon_of_rho(config.privacy.ledger_grant, given["delta"])
    assert row(f"sum of the ε of its {full} windows, had they been added") == [f"{added:.2f}"]
    assert MAX_DELTA == 1e-5
    assert "10⁻⁵ is the most that is accepted" in PAGE


def test_every_piece_of_evidence_exists_and_holds_tests():
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) > 12
    missing = [
        name for name in named if not (REPO_ROOT / name).is_file() or "def test_" not in (REPO_ROOT / name).read_text()
    ]
    assert missing == []
