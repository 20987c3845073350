"""Every file that holds a secret is readable by its owner only, or by the group to which an orchestrator mounts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from stream.cli import app
from stream.config.alerts import WebhookConfig
from stream.ingestion.pseudonyms import existing_user_key, load_user_key
from stream.serve.alerts.watching import signing_secret
from stream.servers.connection import first_line
from tests.support.hourly import BUS
from tests.support.secret_files import write_secret

READERS: dict[str, Callable[[Path], object]] = {
    "user key": load_user_key,
    "user key of others": existing_user_key,
    "password": lambda path: first_line(path, "kafka.password_file"),
    "webhook": lambda path: signing_secret(WebhookConfig(url="http://127.0.0.1/", secret_file=path)),
}
COMMANDS = [["push", "--token-file"], ["hfp", "mqtts://agency.example", "--login"]]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "secret", "name:0123456789-0123456789-0")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_secret_that_others_can_read_is_refused_with_the_remedy(secret: Path, read: Callable[[Path], object]) -> None:
    if read in (READERS["user key"], READERS["user key of others"]):
        secret.write_bytes(bytes(32))
    read(secret)
    for mode in (0o640, 0o604, 0o660, 0o601):
        secret.chmod(mode)
        with pytest.raises(ValueError, match=f"{secret}.*chmod 600") as caught:
            read(secret)
        assert "0123" not in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_refuses_a_secret_that_others_can_read(secret: Path, command: list[str]) -> None:
    secret.chmod(0o644)
    done = CliRunner().invoke(app, [*command, str(secret), "--config", str(BUS)])
    assert done.exit_code == 2
    assert f"run: chmod 600 {secret}" in " ".join(done.stderr.split())
    assert "0123" not in done.output


def test_a_secret_mounted_for_a_group_of_this_process_is_accepted_with_a_word(
    secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes mounts secrets as files of root with the group ``fsGroup``; a worker cannot change their mode."""
    secret.write_bytes(bytes(32))
    monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
    secret.chmod(0o440)
    with capture_logs() as logs:
        assert load_user_key(secret) == bytes(32)
    assert [(entry["file"], entry["group"]) for entry in logs] == [(str(secret), secret.stat().st_gid)]
    secret.chmod(0o444)
    with pytest.raises(ValueError, match=r"mode 0444.*belongs to user.*fsGroup"):
        load_user_key(secret)
