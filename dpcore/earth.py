"""The earth as a sphere: one radius for every distance."""

EARTH_M = 6_371_008.8
"""Mean radius in metres (IUGG)."""
