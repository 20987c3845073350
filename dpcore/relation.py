"""The neighbouring relation: which two histories a release must make hard to tell apart."""

from enum import StrEnum


class NeighbouringRelation(StrEnum):
    """Two histories are neighbours if they differ in ...; its value is its name in configurations and messages."""

    VALUES = "values"
    """... the measured values of one user. Who reported, where, when and how often is public."""
    PARTICIPATION = "participation"
    """... all events of one user. Nothing about a user is public."""
