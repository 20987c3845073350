"""p15, p50 and p85 of each cell as a model reads them from its published mean and variance, where none are drawn.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpcore.modelled_percentiles import percentiles, shrunken_variances
from stream.statistics.columns import PERCENTS, Derived
from stream.statistics.observed_means import noise_variance
from stream.terms import CLIPPED_NORMAL


def modelled_percentiles(
    bodies: Sequence[dict[str, Any]], means: Mapping[str, Derived], upper: float
) -> dict[str, Derived]:
    """The modelled percentiles of the ``bodies`` of a window, (C,) each, by name; 0 for bodies without a release.

    They depend on variances and means as published, and on what ``means``, which earlier bodies may have a part in,
    made of the latter: the modelled mean counts, else the released one. ``upper``: U in km/h. They have no interval,
    because no release says how far speeds are from the model's law.
    """
    places = np.array([g for g, body in enumerate(bodies) if "variance" in body], dtype=np.int64)
    released = [bodies[g] for g in places]
    leading = means.get("mean")
    mean = np.array([body["mean"]["value"] for body in released]) if leading is None else leading.value[places]
    variances = np.array([body["variance"]["raw"] for body in released], dtype=np.float64)
    deviations = np.sqrt(np.array([noise_variance(body["variance"], body) for body in released], dtype=np.float64))
    table = np.zeros((len(PERCENTS), len(bodies)))
    table[:, places] = percentiles(
        mean, shrunken_variances(variances, deviations), upper=upper, percents=tuple(PERCENTS.values())
    )
    return {name: Derived(CLIPPED_NORMAL, column) for name, column in zip(PERCENTS, table, strict=True)}
