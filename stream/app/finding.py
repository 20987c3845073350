"""What a check of a running deployment found."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, whether it holds, what was found, and a remedy if it does not hold."""

    check: str
    ok: bool
    found: str
    remedy: str = ""
    unreachable: bool = False

    def as_dict(self) -> dict[str, object]:
        """The finding as ``--json`` prints it."""
        return asdict(self)
