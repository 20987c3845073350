"""Spatial histograms of a window."""
