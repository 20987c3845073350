"""OGC API - Features: hexagons as collections that geographic information systems read."""
