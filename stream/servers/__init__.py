"""Connections to Kafka and Redis, and which versions of them are supported."""
