"""Relation "values": counts are public, measured values are protected."""
