"""Writes files as operators keep secrets: readable by their owner only."""

from pathlib import Path


def write_secret(file: Path, content: str | bytes) -> Path:
    """Write ``content`` to ``file`` with mode 0600; returns ``file``."""
    file.touch(0o600)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file
