"""The release protocol: every due window is released once, whatever crashes in between."""
