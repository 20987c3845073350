"""Street maps as files: vector tiles, and the archive that holds them. Pure."""
