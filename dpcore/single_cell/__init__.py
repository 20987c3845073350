"""The papers' mean mechanisms for one cell, relation "values": what ``speed.mean_mechanism`` and ``evaluate`` offer.

The default release does not use them: it allocates noise over all cells (:mod:`dpcore.mean`, :mod:`dpcore.allocation`).
Source: [M] arXiv 2401.15906.
"""
