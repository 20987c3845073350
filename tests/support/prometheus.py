"""A real Prometheus on loopback, and what it answers. ``prometheus`` must be on PATH (Debian: apt-get install
prometheus)."""

import json
import math
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stream.local import LOOPBACK, end_process, free_port, spawn, tail

START_SECONDS = 60.0
STEP_SECONDS = 1


class RefusedError(Exception):
    """Prometheus answered with an error; the text is its own."""


class Prometheus:
    """Asks a running Prometheus by its HTTP API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: object) -> Any:
        """The ``data`` of the answer. Raises :class:`RefusedError` if there is none, and OSError if nothing answers."""
        asked = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise RefusedError(refused.read().decode()) from None

    def greatest(self, expression: str, seconds: float) -> float | None:
        """The greatest value of any series in the last ``seconds``, as a panel would draw it; None where it has no
        data.

        A value that is no number, such as a quantile of a histogram that saw nothing, is no data. Raises
        :class:`RefusedError`.
        """
        now = time.time()
        drawn = self.ask("query_range", query=expression, start=now - seconds, end=now, step=STEP_SECONDS)
        values = [float(value) for series in drawn["result"] for _, value in series["values"]]
        return max((value for value in values if math.isfinite(value)), default=None)

    def rules(self) -> list[dict[str, Any]]:
        """Every rule that is loaded, with the health of its last evaluation."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(configuration: Path, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with ``configuration``, as it lies, and its data in ``folder``, which is made."""
    program = shutil.which("prometheus")
    assert program is not None, "prometheus is missing; install it (Debian: apt-get install prometheus)"
    folder.mkdir()
    log, here = folder / "server.log", f"{LOOPBACK}:{free_port()}"
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}"]
    process = spawn([program, *options, f"--web.listen-address={here}"], log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(f"http://{here}/-/ready"):
            assert process.poll() is None, f"prometheus ended:\n{tail(log)}"
            assert time.monotonic() < deadline, f"prometheus does not answer:\n{tail(log)}"
            time.sleep(0.05)
        yield Prometheus(f"http://{here}")
    finally:
        end_process(process, 10.0)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False
