"""The city that the windows are of: names of cells, lines, stops and areas. Public facts that cost no budget."""
