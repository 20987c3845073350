"""Derived speeds equal those of a plain loop, are the same in any batches, bounded, and never cross vehicles or
periods.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpcore.earth import EARTH_M, great_circle_m
from stream.sources.derived_speed import DerivationLimits, SpeedDerivation

START = 1_757_583_600
LIMITS = DerivationLimits()


def derive_all(rows: list[tuple[str, int, float, float]], cuts: list[int], period: int = 0) -> np.ndarray:
    derivation, out = SpeedDerivation(LIMITS), []
    for part in np.split(np.arange(len(rows)), cuts):
        chosen = [rows[i] for i in part]
        columns = [
            np.array([row[k] for row in chosen], dtype=kind) for k, kind in ((1, np.int64), (2, float), (3, float))
        ]
        out.append(
            derivation.derive(
                [row[0] for row in chosen],
                columns[0] * 1_000_000,
                columns[1],
                columns[2],
                np.full(len(part), period),
                now_us=int(columns[0].max(initial=0)) * 1_000_000,
            )
        )
    return np.concatenate(out)


def on_sphere(lat: float, lng: float) -> tuple[float, float, float]:
    """Cartesian coordinates of a place on the unit sphere."""
    phi, theta = math.radians(lat), math.radians(lng)
    return math.cos(phi) * math.cos(theta), math.cos(phi) * math.sin(theta), math.sin(phi)


def plain(rows: list[tuple[str, int, float, float]]) -> list[float]:
    """The definition, one fix at a time."""
    speeds = []
    for name, time, lat, lng in rows:
        mine = sorted({(t, a, b) for n, t, a, b in rows if n == name and t <= time})
        earlier = [fix for fix in mine if fix[0] <= time - LIMITS.least_s]
        since = time
        for t, a, b in reversed(mine):
            if (a, b) != (lat, lng) or since - t > LIMITS.most_s:
                break
            since = t
        if not earlier or time - since > LIMITS.frozen_s:
            speeds.append(math.nan)
            continue
        t, a, b = earlier[-1]
        # The chord, because the arc cosine of a number near 1 makes a decimetre of nothing.
        chord = math.dist(on_sphere(a, b), on_sphere(lat, lng))
        kmh = 3.6 * EARTH_M * 2 * math.asin(chord / 2) / (time - t)
        speeds.append(kmh if time - t <= LIMITS.most_s and kmh <= LIMITS.cap_kmh else math.nan)
    return speeds


@st.composite
def drives(draw: st.DrawFn) -> list[tuple[str, int, float, float]]:
    """Fixes in time order of up to four vehicles, some standing, some jumping, some silent for long."""
    rows, clock = [], START
    places = dict.fromkeys("abcd", (28.6, 77.2))
    for _ in range(draw(st.integers(1, 40))):
        clock += draw(st.sampled_from([1, 3, 7, 8, 20, 60, 200, 301, 700]))
        name = draw(st.sampled_from("abcd"))
        lat, lng = places[name]
        step = draw(st.sampled_from([0.0, 0.0, 0.0005, 0.003, 0.5]))
        places[name] = (round(lat + step, 6), round(lng - step / 2, 6))
        rows.append((name, clock, *places[name]))
    return rows


@given(drives(), st.data())
def test_any_batches_of_a_feed_in_time_order_give_the_speeds_of_the_definition(
    rows: list[tuple[str, int, float, float]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    derived, wanted = derive_all(rows, cuts), np.array(plain(rows))
    assert (np.isnan(derived) == np.isnan(wanted)).all(), (rows, derived, wanted)
    assert derived == pytest.approx(wanted, rel=1e-4, abs=0.05, nan_ok=True)


def test_a_redelivered_snapshot_changes_nothing() -> None:
    rows = [("a", START + 30 * k, 28.6 + 0.002 * k, 77.2) for k in range(6)]
    once, twice = derive_all(rows, []), derive_all([*rows[:4], *rows[2:4], *rows[4:]], [4, 6])
    assert twice[:4] == pytest.approx(once[:4], nan_ok=True)
    assert twice[6:] == pytest.approx(once[4:])


def test_no_speed_is_derived_across_the_border_of_two_ledger_periods() -> None:
    rows = [("a", START, 28.6, 77.2), ("a", START + 30, 28.602, 77.2)]
    assert derive_all(rows, [1], period=START * 1_000_000)[1] == pytest.approx(26.7, abs=0.1)
    assert np.isnan(derive_all(rows, [1], period=(START + 10) * 1_000_000)[1])


def test_a_stay_before_the_border_of_two_ledger_periods_decides_nothing_after_it() -> None:
    """Else a user's events of one period would follow from their fixes of the period before."""
    midnight = START + 3_600
    rows = [("a", START + 60 * k, 28.6, 77.2) for k in range(100)]
    before = derive_all(rows[:60], [])
    after = derive_all(rows, [60], period=midnight * 1_000_000)[60:]
    assert np.isnan(before[21:]).all()
    assert np.isnan(after).tolist() == [True] + [False] * 20 + [True] * 19


def test_distances_agree_with_the_length_of_a_degree() -> None:
    one = great_circle_m(np.array([0.0, 60.0]), np.array([0.0, 179.9]), np.array([1.0, 60.0]), np.array([0.0, -179.9]))
    assert one == pytest.approx([111_195.1, 0.2 * 111_195.1 / 2], rel=1e-4)


def test_memory_follows_the_vehicles_on_the_road_not_all_that_ever_drove() -> None:
    derivation = SpeedDerivation()
    for hour in range(60):
        names = [f"{hour}-{k}" for k in range(100)]
        time = np.full(100, (START + 3600 * hour) * 1_000_000)
        derivation.derive(names, time, np.full(100, 28.6), np.full(100, 77.2), np.zeros(100, np.int64), int(time[0]))
    assert len(derivation) <= 1_200


@pytest.mark.parametrize("wrong", [{"least_s": 0}, {"least_s": 400}, {"cap_kmh": 0}, {"frozen_s": -1}])
def test_limits_that_make_no_sense_are_refused_with_their_values(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="least_s at most most_s"):
        DerivationLimits(**wrong)
