"""Errors are computed for each hexagon, noise and intervals for each cell of the plan."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from stream.config import Config
from stream.evaluation.evaluate import Places, PlannedWindow, Tables, planned_windows, score_draw
from stream.evaluation.scores import Errors
from tests.support.builders import SLOT, bus_config, random_rows


def planned_window(config: Config) -> PlannedWindow:
    (window,) = planned_windows(config, {SLOT: random_rows(1, 40)})
    return window


def test_without_merging_hexagons_and_cells_are_the_same_places(tmp_path: Path) -> None:
    window = planned_window(bus_config(tmp_path))
    places = Places.of(window.plan, window.contributions)
    assert places.hexagons is places.cells
    np.testing.assert_array_equal(places.answering, places.shown)
    np.testing.assert_array_equal(places.answering, np.flatnonzero(window.plan.published))


def test_a_merged_cell_answers_for_each_of_its_hexagons_which_keep_their_own_truth(tmp_path: Path) -> None:
    window = planned_window(bus_config(tmp_path, **{"hexagons.merge_until": 1.0, "hexagons.coarsest_resolution": 4}))
    places = Places.of(window.plan, window.contributions)
    assert places.cells.counts.n_cells < places.hexagons.counts.n_cells, "something is merged"
    estimate = np.arange(places.cells.counts.n_cells, dtype=float)
    truth = np.linspace(0, 1, places.hexagons.counts.n_cells)
    assert window.plan.merged is not None
    for hexagon, error in zip(places.ids, places.errors(estimate, truth), strict=True):
        at = int(np.searchsorted(places.hexagons.counts.cells, hexagon))
        cell = int(np.searchsorted(places.cells.counts.cells, window.plan.merged[at]))
        assert error == pytest.approx(estimate[cell] - truth[at])
    assert places.weight.sum() == 40


def test_a_draw_adds_one_error_per_shown_hexagon_and_one_verdict_per_noisy_cell(tmp_path: Path) -> None:
    config = bus_config(tmp_path, **{"speed.statistics": ["mean"], "speed.post_processing": []})
    window, tables = planned_window(config), Tables(Errors)
    assert score_draw(window.plan, window.contributions, window.measured(), tables, None) is None
    assert isinstance(tables, defaultdict)
    places, errors = Places.of(window.plan, window.contributions), tables["mean", "released"]
    assert [len(column) for column in (errors.error[0], errors.weight[0], errors.cell[0])] == [len(places.shown)] * 3
    assert len(errors.covered[0]) == len(errors.noise[0]) == len(places.published)
