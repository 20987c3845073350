"""The spatial histograms of a window."""
