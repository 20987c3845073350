"""Kafka bytes become columns, and columns become stored rows: reader, decoding, formats, pseudonyms."""
