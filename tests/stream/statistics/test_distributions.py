"""Published distributions: what they say, what they cost, and when they are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.cdf import CDFs
from dpcore.noise import Noise
from stream.config import ConfigError
from stream.config import public_cells as public_cells_of
from stream.config.public_cells import public_cells
from stream.messages.message import HEXAGON_SPEED, validator
from stream.statistics import distributions
from tests.support.builders import bus_config, random_rows
from tests.support.participating import riders
from tests.support.releasing import build_messages, planned
from tests.support.schemas import validate
from tests.support.tapes import tape

Bodies = list[dict[str, Any]]


def bodies_of(config: Any, seed: int = 9) -> tuple[Any, Bodies]:
    """The plan of a window, and its messages under one tape of entropy, marker last."""
    plan, contributions = planned(config, random_rows(seed, 400))
    messages = build_messages(plan, contributions, Noise(tape(3)), None)[0]
    return plan, [json.loads(message.value) for message in messages]


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_a_distribution_is_published_beside_percentiles_and_by_itself_in_one_form(
    tmp_path: Path, relation: str
) -> None:
    build = bus_config if relation == "values" else riders
    for statistics in (["p50"], ["mean", "p15", "p50", "p85"], ["cdf"], ["cdf", "mean"]):
        _, (*cells, _) = bodies_of(build(tmp_path, **{"speed.statistics": statistics}))
        for body in cells:
            validate(HEXAGON_SPEED, body)
            assert validator(HEXAGON_SPEED).is_valid(body)
            cdf = body["cdf"]
            assert len({len(cdf[name]) for name in ("at", "value", "raw", "scale", "low", "high")}) == 1
            assert (len(cdf["at"]), cdf["at"][-1], cdf["value"][-1]) == (32, 65.0, 1.0)
            for name in ("at", "value", "low", "high"):
                assert cdf[name] == sorted(cdf[name])
            assert all(
                low <= value <= high for low, value, high in zip(cdf["low"], cdf["value"], cdf["high"], strict=True)
            )
            assert set(statistics) <= set(body)


@pytest.mark.parametrize("rows", [random_rows(9, 400), random_rows(9, 0)], ids=["rows", "nobody"])
@pytest.mark.parametrize(("upper", "asked", "bins"), [(0.3, 32, 31), (0.3, 31, 31), (0.01, 4096, 2), (1.0, 4096, 101)])
@pytest.mark.parametrize("relation", ["values", "participation"])
def test_more_bins_than_speeds_are_as_many_as_there_are_speeds_in_everything_that_is_released(
    tmp_path: Path, relation: str, upper: float, asked: int, bins: int, rows: np.ndarray
) -> None:
    """Speeds are multiples of 0.01 km/h, so that 0 … 0.3 km/h are 31."""
    settings = {"value.upper": upper, "speed.cdf_bins": asked, "speed.statistics": ["mean", "p50", "cdf"]}
    if relation == "participation":
        settings |= {"speed.clipping": "none", "speed.post_processing": [], "value.typical": upper / 2}
    config = (bus_config if relation == "values" else riders)(tmp_path, **settings)
    plan, contributions = planned(config, rows)
    *cells, marker = build_messages(plan, contributions, Noise(tape(3)), None)[0]
    assert "cut_short" not in json.loads(marker.value)
    assert len(cells) == (len(public_cells(config)) if relation == "participation" else contributions.counts.n_cells)
    for body in (json.loads(message.value) for message in cells):
        validate(HEXAGON_SPEED, body)
        assert {len(body["cdf"][name]) for name in ("at", "value", "raw", "scale", "low", "high")} == {bins}
        assert body["cdf"]["at"] == [k / 100 for k in range(bins)]
        assert 0 <= body["p50"]["value"] <= upper


def test_means_alone_have_no_distribution(tmp_path: Path) -> None:
    _, (*cells, _) = bodies_of(bus_config(tmp_path))
    assert not any("cdf" in body for body in cells)


@pytest.mark.parametrize(
    ("relation", "mechanism"), [("values", "allocated"), ("values", "levy"), ("participation", "allocated")]
)
def test_asking_for_the_distribution_too_changes_neither_a_charge_nor_a_scale_nor_a_draw(
    tmp_path: Path, relation: str, mechanism: str
) -> None:
    """The same bytes of entropy give the same percentiles: nothing further is drawn, and nothing further is read."""
    build = bus_config if relation == "values" else riders
    chosen = {"speed.mean_mechanism": mechanism}
    (plan, bodies), (more, others) = (
        bodies_of(build(tmp_path, **chosen, **{"speed.statistics": statistics}))
        for statistics in (["mean", "p50"], ["mean", "p50", "cdf"])
    )
    assert plan.charges.tolist() == more.charges.tolist()
    assert plan.scales.numerator.tolist() == more.scales.numerator.tolist()
    assert bodies[:-1] == others[:-1]


def test_a_percentile_lies_where_the_distribution_crosses_its_share(tmp_path: Path) -> None:
    _, (*cells, _) = bodies_of(
        bus_config(tmp_path, **{"speed.statistics": ["p15", "p50", "p85"], "privacy.epsilon": 8.0})
    )
    for body in cells:
        at = [0.0, *body["cdf"]["at"]]
        for name, share in (("p15", 0.15), ("p50", 0.5), ("p85", 0.85)):
            k = int(np.searchsorted(body["cdf"]["value"], share - 1e-5))
            assert at[k] - 0.01 <= body[name]["value"] <= at[k + 1] + 0.01


def test_windows_with_very_many_numbers_leave_distributions_out_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bus_config(tmp_path, **{"speed.statistics": ["mean", "p50"]})
    plan, (*cells, marker) = bodies_of(config)
    assert "cut_short" not in marker
    for limit, left_out in ((len(plan.cells) * 32, False), (len(plan.cells) * 32 - 1, True)):
        monkeypatch.setattr(distributions, "MAX_NUMBERS", limit)
        _, (*cells, marker) = bodies_of(config)
        assert any("cdf" in body for body in cells) != left_out
        assert all("p50" in body for body in cells)
        assert marker.get("cut_short") == (["cdf"] if left_out else None)


def test_a_public_list_too_long_for_its_bins_is_refused_with_bins_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_cells_of, "MAX_NUMBERS", 500)
    config = riders(tmp_path, **{"speed.statistics": ["cdf"], "speed.cdf_bins": 4096})
    cells = len(public_cells(riders(tmp_path)))
    with pytest.raises(ConfigError, match=f"lower speed.cdf_bins to {500 // cells} or choose fewer cells"):
        public_cells(config)
    monkeypatch.setattr(public_cells_of, "MAX_NUMBERS", cells)
    with pytest.raises(ConfigError, match=f"more than {cells}; choose fewer cells, or leave 'cdf' out"):
        public_cells(config)


def refuse(*_: Any) -> Any:
    raise AssertionError("shares of distributions that are left out are not computed")


@pytest.mark.parametrize("relation", ["values", "participation"])
def test_percentiles_alone_are_released_where_their_distributions_are_too_many_which_are_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relation: str
) -> None:
    monkeypatch.setattr(distributions, "MAX_NUMBERS", 1)
    monkeypatch.setattr(CDFs, "shares", refuse)
    build = bus_config if relation == "values" else riders
    _, (*cells, marker) = bodies_of(build(tmp_path, **{"speed.statistics": ["p50"]}))
    assert all("p50" in body and "cdf" not in body for body in cells)
    assert marker["cut_short"] == ["cdf"]


@pytest.mark.parametrize("others", [[], ["mean"]], ids=["alone", "beside the mean"])
def test_nobody_pays_for_distributions_that_public_counts_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    means, _ = bodies_of(bus_config(tmp_path, **{"speed.statistics": ["mean"]}))
    monkeypatch.setattr(distributions, "MAX_NUMBERS", 1)
    plan, (*cells, marker) = bodies_of(bus_config(tmp_path, **{"speed.statistics": [*others, "cdf"]}))
    assert marker["cut_short"] == ["cdf"]
    assert {body["status"] for body in cells} == {"published" if others else "suppressed"}
    assert plan.charges.tolist() == (means.charges.tolist() if others else [0] * len(plan.charges))
    if others:
        assert plan.scales.numerator.tolist() == means.scales.numerator.tolist()
    for body in cells:
        assert validator(HEXAGON_SPEED).is_valid(body)
