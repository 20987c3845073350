"""Processes of a GTFS-realtime feed that share what a Redis keeps of its vehicles."""

from pathlib import Path

from stream.config.servers import RedisConfig
from stream.ingestion.pseudonyms import KEY_BYTES, Pseudonyms, key_fingerprint
from stream.sources import fix_memory
from stream.sources.derived_speed import DerivationLimits
from stream.sources.fix_memory import FixMemory, Opened
from stream.sources.vehicle_positions import GtfsRealtime
from stream.storage.client import blocking_client
from stream.storage.last_fixes import LastFixes
from tests.stream.sources.agency import reader

LIMITS = DerivationLimits()
KEY, KEY_FILE = bytes(KEY_BYTES), Path("user.key")


def memory(url: str) -> FixMemory:
    """The memory of a process that has just started."""
    client = blocking_client(RedisConfig(url=url), fix_memory.TIMEOUT_S)
    fixes = LastFixes(client, "bus", key_fingerprint(KEY), LIMITS.most_s, LIMITS.least_s)
    return FixMemory(lambda: Opened(fixes, Pseudonyms(KEY)), KEY_FILE)


def started(url: str | None) -> GtfsRealtime:
    """A process that has just started; without an address one that remembers nothing."""
    source = reader()
    source.remember_by(None if url is None else memory(url))
    return source
