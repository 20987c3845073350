"""``python -m hexveil``: the command line under the name of the distribution. The service itself is :mod:`stream`."""

from dpcore import __version__
from stream.cli import main

__all__ = ["__version__", "main"]

if __name__ == "__main__":
    main()
