"""Reads events: bytes from Kafka become columns, and columns become rows in Redis."""
