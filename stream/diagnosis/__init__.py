"""The one judge of a feed: why events are refused, and what is odd about the others. Inside the boundary only."""
