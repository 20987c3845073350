"""The order in which people list routes."""

from __future__ import annotations


def by_number(route: str) -> tuple[int, str]:
    """A key for sorting: numbered routes by number, before the others."""
    return (int(route) if route.isdecimal() and len(route) < 10 else 1 << 40), route
