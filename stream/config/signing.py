"""Section ``[signing]``: the key with which close markers are signed, so that others can tell who made them."""

from __future__ import annotations

from pathlib import Path

from stream.config.section import Section


class SigningConfig(Section):
    """``key_file``: an Ed25519 private key in PEM. Without this section close markers are chained and not signed."""

    key_file: Path
