"""The worker: a Faust application whose services read the feed, close windows that are due and publish them."""
