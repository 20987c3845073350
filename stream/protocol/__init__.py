"""The release protocol: it releases every due window once, even if processes crash in between."""
