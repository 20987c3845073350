"""Relation "participation": nothing about a user is public."""
