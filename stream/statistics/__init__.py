"""The statistics of a window: planned from what the relation allows, drawn with exact noise. No server, no clock."""
