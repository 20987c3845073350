"""Spatial histograms under relation "participation": fit on points or counts, query rectangles, release as JSON."""

from dpcore.spatial.domain import Domain
from dpcore.spatial.e2epriv import E2EPriv
from dpcore.spatial.grids import AdaptiveGrid, Privlet, Singular, Uniform, UniformGrid
from dpcore.spatial.hierarchy import Auto, SparseHierarchy
from dpcore.spatial.histogram import GridHistogram, Histogram, PartitionHistogram
from dpcore.spatial.htf import HTF
from dpcore.spatial.mechanism import SpatialMechanism
from dpcore.spatial.queries import Rectangles
from dpcore.spatial.release import histogram_from_release
from dpcore.spatial.trees import KdTree, QuadTree

__all__ = [
    "HTF",
    "AdaptiveGrid",
    "Auto",
    "Domain",
    "E2EPriv",
    "GridHistogram",
    "Histogram",
    "KdTree",
    "PartitionHistogram",
    "Privlet",
    "QuadTree",
    "Rectangles",
    "Singular",
    "SparseHierarchy",
    "SpatialMechanism",
    "Uniform",
    "UniformGrid",
    "histogram_from_release",
]
