"""Verifies lines of releases as ``hexveil verify`` does."""

from typing import Any

from stream.messages.lines import read_line
from stream.messages.verification import Record, Verification


def verified(lines: list[str], **given: Any) -> dict[str, Any]:
    """The report on ``lines``; ``given``: keys and digests that the reader holds."""
    verification = Verification(**given)
    for number, text in enumerate(lines, start=1):
        line = read_line(text.encode())
        verification.take(Record(line.topic, line.headers, bytes(line.value), f"line {number}"))
    return verification.finish()
