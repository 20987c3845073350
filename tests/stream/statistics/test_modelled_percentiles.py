"""Modelled percentiles in messages: from published means and variances alone, marked as modelled, without an
interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.modelled_percentiles import percentiles
from dpcore.noise import Noise
from stream.config import Config, ConfigError
from stream.statistics import pipeline
from stream.statistics.columns import Derived
from stream.statistics.observed_means import modelled_percentiles
from tests.support.builders import bus_config, random_rows, zcdp_config
from tests.support.participating import riders
from tests.support.releasing import build_messages, planned
from tests.support.schemas import validate

MODELLED = {"speed.post_processing": ["clipped-normal"], "speed.statistics": ["mean", "variance"]}
NAMES = ["p15", "p50", "p85"]
UPPER = 65.0


def bodies_of(config: Config, seed: int = 1) -> list[dict[str, Any]]:
    """The hexagon messages of one window."""
    plan, contributions = planned(config, random_rows(seed, 300))
    messages, _ = build_messages(plan, contributions, Noise(np.random.default_rng(seed).bytes), None)
    for message in messages:
        validate(message.topic, json.loads(message.value))
    return [json.loads(message.value) for message in messages[:-1]]


def body(mean: float, variance: float, scale: float, **fields: Any) -> dict[str, Any]:
    return {"mean": {"value": mean}, "variance": {"raw": variance, "scale": scale}} | fields


@pytest.mark.parametrize("build", [bus_config, riders, zcdp_config])
def test_published_cells_have_modelled_percentiles_without_intervals(tmp_path: Path, build: Any) -> None:
    bodies = bodies_of(build(tmp_path, **MODELLED))
    for each in bodies:
        assert "p50" not in each
        if each["status"] == "suppressed":
            assert "post_processed" not in each
            continue
        modelled = each["post_processed"]
        assert list(modelled) == NAMES
        values = [modelled[name].pop("value") for name in NAMES]
        assert all(modelled[name] == {"method": "clipped-normal", "unit": "km/h"} for name in NAMES)
        assert values == sorted(values)
        assert min(values) >= 0
    assert any(each["status"] == "published" for each in bodies)


@pytest.mark.parametrize("build", [bus_config, riders, zcdp_config])
def test_nothing_else_changes_when_percentiles_are_modelled(tmp_path: Path, build: Any) -> None:
    kinds = ["kalman"]
    settings = {"speed.statistics": ["mean", "variance"]}
    with_model = bodies_of(build(tmp_path, **settings, **{"speed.post_processing": [*kinds, "clipped-normal"]}))
    without = bodies_of(build(tmp_path, **settings, **{"speed.post_processing": kinds}))
    for each in with_model:
        if each["status"] == "published":
            assert [each["post_processed"].pop(name)["method"] for name in NAMES] == ["clipped-normal"] * 3
    assert with_model == without


def released_alone(bodies: list[dict[str, Any]], upper: float, leading: str | None) -> list[dict[str, float]]:
    """The percentiles that a reader of the messages computes."""
    published = [each for each in bodies if each["status"] == "published"]
    means = {}
    if leading is not None:
        means[leading] = Derived("any", np.array([each["post_processed"][leading]["value"] for each in published]))
    columns = modelled_percentiles(published, means, upper)
    return [{name: float(columns[name].value[g]) for name in NAMES} for g in range(len(published))]


@pytest.mark.parametrize(
    ("build", "kinds", "leading"),
    [
        (bus_config, [], None),
        (bus_config, ["kalman"], "mean"),
        (riders, [], None),
        (riders, ["kalman"], "mean"),
        (zcdp_config, ["kalman"], "mean"),
    ],
)
def test_every_reader_computes_the_same_percentiles_from_the_messages(
    tmp_path: Path, build: Any, kinds: list[str], leading: str | None
) -> None:
    """The modelled mean counts, else the released one; means in messages are rounded to 0.001 km/h."""
    settings = MODELLED | {"speed.post_processing": [*kinds, "clipped-normal"]}
    config = build(tmp_path, **settings)
    bodies = bodies_of(config)
    published = [each for each in bodies if each["status"] == "published"]
    again = released_alone(bodies, config.value.upper, leading)
    for each, values in zip(published, again, strict=True):
        for name in NAMES:
            assert each["post_processed"][name]["value"] == pytest.approx(values[name], abs=0.06)


def test_a_true_mean_that_slips_into_the_model_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: one cell's mean is not the published one."""

    def leaking(bodies: Any, means: Any, upper: float) -> dict[str, Derived]:
        first, *rest = bodies
        true = first | {"mean": first["mean"] | {"value": 31.0}}
        return modelled_percentiles([true, *rest], means, upper)

    monkeypatch.setattr(pipeline, "modelled_percentiles", leaking)
    config = riders(tmp_path, **MODELLED)
    bodies = bodies_of(config)
    (again, *_) = released_alone(bodies, config.value.upper, None)
    assert abs(bodies[0]["post_processed"]["p50"]["value"] - again["p50"]) > 0.5


def test_noise_of_a_cell_counts_by_the_law_that_its_message_names() -> None:
    """A Laplace scale is √2 times smaller than its standard deviation, a Gaussian one is it."""
    laplace = [body(20.0, variance, 50.0) for variance in (100.0, 400.0, 250.0)]
    gaussian = [body(20.0, variance, 50.0 * np.sqrt(2), accounting="zcdp") for variance in (100.0, 400.0, 250.0)]
    by_laplace, by_gaussian = (modelled_percentiles(bodies, {}, UPPER) for bodies in (laplace, gaussian))
    for name in NAMES:
        assert by_laplace[name].value == pytest.approx(by_gaussian[name].value)
        assert by_laplace[name].interval is None


def test_cells_without_a_release_do_not_take_part() -> None:
    published = [body(20.0, 100.0, 5.0), body(30.0, 250.0, 5.0)]
    alone = modelled_percentiles(published, {}, UPPER)
    beside = modelled_percentiles([published[0], {"status": "suppressed"}, published[1]], {}, UPPER)
    for name in NAMES:
        assert beside[name].value[[0, 2]].tolist() == alone[name].value.tolist()
        assert beside[name].value[1] == 0
    assert modelled_percentiles([], {}, UPPER)["p50"].value.shape == (0,)


def test_of_single_cells_without_noise_in_the_variance_the_law_is_that_of_the_message() -> None:
    (value,) = modelled_percentiles([body(20.0, 300.0, 0.0)], {}, UPPER)["p50"].value
    expected = percentiles(np.array([20.0]), np.array([300.0]), upper=UPPER, percents=[50.0])
    assert value == expected[0, 0]


@pytest.mark.parametrize("build", [bus_config, riders])
@pytest.mark.parametrize(("statistics", "missing"), [(["mean"], "variance"), (["p50"], "mean and variance")])
def test_a_model_without_its_moments_is_refused_with_the_remedy(
    tmp_path: Path, build: Any, statistics: list[str], missing: str
) -> None:
    with pytest.raises(ConfigError, match=rf"without {missing}; add what is missing, or leave 'clipped-normal' out"):
        build(tmp_path, **MODELLED | {"speed.statistics": statistics})
