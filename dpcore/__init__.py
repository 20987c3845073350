"""Differential privacy mechanisms for user-level traffic statistics: pure functions of counts, values and noise.

Nothing here reads a clock, a file, a server or a global random state. Noise comes from an injected
:class:`dpcore.noise.Noise`; budgets are integers (:mod:`dpcore.budget`).
"""
