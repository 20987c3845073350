"""Sources of events: recordings, GTFS-realtime feeds and a synthetic city."""
