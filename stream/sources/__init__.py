"""Where events come from: recordings and a synthetic city."""
