"""``python -m stream``: the command line without installation."""

from stream.cli import main

if __name__ == "__main__":
    main()
