"""Spatial histograms under relation A (participation): fit on points or counts, query rectangles, release as JSON."""

from dpcore.spatial.domain import Domain
from dpcore.spatial.histogram import GridHistogram, Histogram, PartitionHistogram, histogram_from_release
from dpcore.spatial.mechanism import BudgetSplit, SpatialMechanism
from dpcore.spatial.queries import Rectangles

__all__ = [
    "BudgetSplit",
    "Domain",
    "GridHistogram",
    "Histogram",
    "PartitionHistogram",
    "Rectangles",
    "SpatialMechanism",
    "histogram_from_release",
]
