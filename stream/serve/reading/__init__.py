"""Reads committed messages from the output topics or from files of releases."""
