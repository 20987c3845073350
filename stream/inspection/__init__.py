"""Looks at a feed before it is used: what it holds, which faults it has, which configuration fits. Inside the boundary only."""
