"""Draws an inspection: where the fixes are, how far apart in time, how fast. Not private."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from stream.diagnosis.measures import Measures
from stream.diagnosis.observations import Observations

_BINS = 60


def plot_feed(seen: Observations, measures: Measures, path: Path) -> None:
    """Write the figure. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    places, intervals, speeds = figure.subplots(1, 3)
    figure.suptitle("NOT PRIVATE: true positions and speeds", color="firebrick", fontweight="bold")
    if measures.box is not None:
        south, west, north, east = measures.box
        counts = places.hist2d(
            np.where((west > east) & (seen.lng < west), seen.lng + 360, seen.lng),
            seen.lat,
            bins=_BINS,
            range=((west, max(east + 360 * (west > east), west + 1e-3)), (south, max(north, south + 1e-3))),
            cmin=1,
        )
        figure.colorbar(counts[3], ax=places, shrink=0.8, label="fixes")
        places.locator_params(axis="x", nbins=4)
        places.set_aspect(1 / max(math.cos(math.radians((south + north) / 2)), 0.05))
    places.set(title=f"{measures.fixes} fixes of {measures.vehicles} vehicles", xlabel="longitude", ylabel="latitude")
    order = np.lexsort((seen.time_us, seen.user))
    gaps = np.diff(seen.time_us[order])[np.diff(seen.user[order]) == 0] / 1e6
    intervals.hist(np.clip(gaps[gaps > 0], 0, 600), bins=_BINS, color="steelblue")
    intervals.set(title="time between fixes of a vehicle", xlabel="seconds, 600 and more in the last bar")
    known = seen.speed[np.isfinite(seen.speed)]
    if len(known):
        top = float(np.quantile(known, 0.995)) or 1.0
        speeds.hist(np.clip(known, 0, top), bins=_BINS, color="steelblue")
    speeds.set(title="reported speeds", xlabel="in the feed's own unit")
    figure.savefig(path)
