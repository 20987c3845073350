"""The one judge of a feed: why events are refused, and what is odd about those that are not. Inside the boundary
only."""
