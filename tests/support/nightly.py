"""Which cases of a test every run has, and which only ``make test-all``."""

from collections.abc import Iterable
from typing import Any

import pytest


def nightly_but(kept: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """``cases``, of which those that are not among ``kept`` are marked as nightly."""
    kept = list(kept)
    return [case if case in kept else nightly(case) for case in cases]


def nightly(*values: Any) -> Any:
    """A case that only ``make test-all`` runs."""
    return pytest.param(*values, marks=pytest.mark.nightly)
