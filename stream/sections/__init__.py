"""Sections of the configuration, each validated by itself; :mod:`stream.config` makes one whole of them."""
