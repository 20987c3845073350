"""Requests to a service that is just starting."""

import time
import urllib.request


def fetched(address: str) -> bytes:
    """The body at ``address``, asked for until the service is up and has a window to show."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return bytes(answer.read())
        except OSError:  # refused, or 404 as yet
            time.sleep(0.2)
    raise AssertionError(f"{address} never answered")
