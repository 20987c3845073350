"""Typed errors: each message is a sentence with the value, the bound and the remedy."""


class DPError(ValueError):
    """Any refusal of this package."""


class ParameterError(DPError):
    """A parameter outside what the mechanism is defined or proved for."""


class BudgetError(DPError):
    """An allowance that is not positive, or shares that exceed their total."""


class OverflowBoundError(DPError):
    """Integers that could leave int64: the exactness proof would not hold."""
