"""Differential privacy mechanisms for user-level traffic statistics: pure functions of counts, values and noise.

Nothing here reads a clock, a file, a server or a global random state. Noise comes from an injected
:class:`dpcore.noise.Noise`; budgets are integers (:mod:`dpcore.budget`).

The public surface is every name without a leading underscore in the modules of ``__all__``.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

__version__ = "0.1.0"
"""Version of this package and of the service built on it; both distributions read it here."""

__all__ = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public module at its first use: importing all of scipy for one mechanism would take a second."""
        if name in __all__:
            return import_module(f"dpcore.{name}")
        raise AttributeError(f"module 'dpcore' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
