"""A real MQTT broker for tests, which can be stopped and started again at the same port."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from trustme import CA

from stream.local import LOOPBACK, free_port

_SBIN = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin"
USER, PASSWORD = "city", "s3cret"


class Mosquitto:
    """Listens on 127.0.0.1: at ``port`` without TLS for everybody; with ``ca`` only with TLS, and only for
    :data:`USER`."""

    def __init__(self, folder: Path, ca: CA | None = None) -> None:
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:{_SBIN}")
        if program is None:
            pytest.skip("no mosquitto; Debian: apt-get install mosquitto")
        self.port = free_port()
        lines = [f"listener {self.port} {LOOPBACK}", "persistence false", "user root"]
        if ca is None:
            lines.append("allow_anonymous true")
        else:
            lines += ["allow_anonymous false", f"password_file {folder / 'passwords'}", f"acl_file {folder / 'acl'}"]
            lines += [f"certfile {folder / 'server.pem'}", f"keyfile {folder / 'server.pem'}"]
            ca.issue_cert("localhost", LOOPBACK).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
            (folder / "acl").write_text(f"user {USER}\ntopic readwrite /hfp/#\n")
            (folder / "passwords").touch(mode=0o600)
            passwords = shutil.which("mosquitto_passwd", path=f"{os.environ['PATH']}:/usr/bin:{_SBIN}")
            subprocess.run([str(passwords), "-b", str(folder / "passwords"), USER, PASSWORD], check=True)
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self._command, self._log = [program, "-c", str(folder / "mosquitto.conf")], folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            with suppress(OSError), socket.create_connection((LOOPBACK, self.port), 0.5):
                return
            time.sleep(0.01)
        raise AssertionError(self._log.read_text())

    def stop(self) -> None:
        """Kill it, as a power failure would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
