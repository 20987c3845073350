"""Close markers form a chain, and an operator may sign them, so that a third party can tell what was published.

Each marker carries the SHA-256 of the value of the marker before it (``previous``). With a signing key it names the
public key (``signer``), and its header ``ce_signature`` is the Ed25519 signature (RFC 8032) of its value, byte for
byte. Both follow from the marker and the one before it alone, so a marker that is made again is the same. An operator
who changes the key lets the old one endorse the new one, and each marker of the new key carries that endorsement
(``succeeds``).
"""

import base64
import binascii
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from stream.config.secret_files import OpenSecretError, drafted, read_secret
from stream.messages.message import Message, digest

SIGNATURE = "ce_signature"
"""The header of a signed close marker, in base64."""
_KIND = "ed25519:"
_ENDORSES = b"hexveil: markers are signed from now on by "
"""How the text that an old key signs for a new one begins. No marker begins so."""
_SUCCESSION = re.compile(r"^Succeeds: (\S+) (\S+)$", re.MULTILINE)
_LARGEST_FILE = 1 << 16


class SigningKeyError(ValueError):
    """A key file that cannot be used; the message says how to repair it."""


class ChainError(ValueError):
    """The next marker cannot continue the chain with this key; the message says how it can."""


class Succession(msgspec.Struct, frozen=True):
    """An old key's statement that another one follows it. ``signer``: the old key; ``endorsement``: its signature."""

    signer: str
    endorsement: str

    def endorses(self, signer: str) -> bool:
        """Whether the old key signed that ``signer`` follows it."""
        return signed_by(self.signer, _ENDORSES + signer.encode(), self.endorsement)


class Link(msgspec.Struct, frozen=True):
    """What the next marker needs to know of the last one: the digest of its value, and its signer (empty: nobody)."""

    digest: str
    signer: str = ""

    def unsigned(self) -> "Link":
        """The same, which any key may follow."""
        return Link(self.digest)


def encode_link(link: Link) -> bytes:
    """The link as it is stored."""
    return msgspec.json.encode(link)


def decode_link(stored: bytes) -> Link | None:
    """The stored link; None if there is none, because no marker was made yet."""
    return msgspec.json.decode(stored, type=Link) if stored else None


@dataclass(frozen=True)
class Signer:
    """The private key of an operator, and what the key before it says of it (None: there is none)."""

    key: Ed25519PrivateKey
    succeeds: Succession | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The key in the file ``path``, which others may not read. Raises :class:`SigningKeyError`."""
        file = Path(path)
        try:
            content = read_secret(file, _LARGEST_FILE)
        except OpenSecretError as error:
            raise SigningKeyError(str(error)) from None
        except OSError as error:
            raise SigningKeyError(f"{file}: {error.strerror}; 'hexveil key signing {file}' makes one") from None
        try:
            text = content.decode()
            key = load_pem_private_key(text[max(0, text.find("-----BEGIN")) :].encode(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise SigningKeyError(
                f"{file}: no Ed25519 private key in PEM without a password; 'hexveil key signing' makes one"
            )
        line = _SUCCESSION.search(text)
        signer = cls(key, None if line is None else Succession(*line.groups()))
        if signer.succeeds is not None and not signer.succeeds.endorses(signer.public):
            raise SigningKeyError(
                f"{file}: its line 'Succeeds' is of another key; restore the file that 'hexveil key signing' wrote"
            )
        return signer

    @property
    def public(self) -> str:
        """The public key, as markers name it."""
        return public_text(self.key.public_key())

    def sign(self, value: bytes) -> str:
        """The signature of ``value`` in base64. The same value always has the same one."""
        return base64.b64encode(self.key.sign(value)).decode()

    def renewed(self) -> "Signer":
        """A new key that this one endorses."""
        new = Ed25519PrivateKey.generate()
        return Signer(new, Succession(self.public, self.sign(_ENDORSES + public_text(new.public_key()).encode())))

    def write(self, file: Path) -> None:
        """Write the private key to ``file``, for its owner alone, and the public key beside it, with the suffix
        ``.pub``.

        Each file is replaced in one step. Raises :class:`OSError`.
        """
        private = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        if self.succeeds is not None:
            private = f"Succeeds: {self.succeeds.signer} {self.succeeds.endorsement}\n".encode() + private
        public = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for path, content, mode in ((file.with_name(f"{file.name}.pub"), public, 0o644), (file, private, 0o600)):
            with drafted(path, content, mode) as draft:
                draft.replace(path)


def new_signer() -> Signer:
    """A signer with a new key."""
    return Signer(Ed25519PrivateKey.generate())


def public_text(key: Ed25519PublicKey) -> str:
    """A public key as markers name it: ``ed25519:`` and its 32 bytes in base64."""
    return _KIND + base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def load_public(path: str | os.PathLike[str]) -> str:
    """The public key of a PEM file, as markers name it. Raises :class:`SigningKeyError`."""
    file = Path(path)
    try:
        with file.open("rb") as handle:
            key = load_pem_public_key(handle.read(_LARGEST_FILE))
    except OSError as error:
        raise SigningKeyError(f"{file}: {error.strerror}; name the operator's file of the public key") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise SigningKeyError(
            f"{file}: no Ed25519 public key in PEM; name the file with the suffix .pub that belongs to the signing key"
        )
    return public_text(key)


def signed_by(signer: str, value: bytes, signature: str) -> bool:
    """Whether ``signature`` (base64) is that of ``value`` by the public key ``signer``."""
    try:
        raw = base64.b64decode(signer.removeprefix(_KIND), validate=True)
        Ed25519PublicKey.from_public_bytes(raw).verify(base64.b64decode(signature, validate=True), value)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return signer.startswith(_KIND)


def value_digest(value: bytes) -> str:
    """The digest by which the next marker names the marker with this ``value``."""
    return digest([value])


def continued(marker: Message, last: Link | None, signer: Signer | None) -> tuple[Message, Link]:
    """``marker`` as the next of the chain after ``last`` (None: the first one), and the link to it. Pure.

    Raises :class:`ChainError` if the last marker was signed by a key that neither is this one nor endorsed it.
    """
    fields: dict[str, object] = {"previous": None if last is None else last.digest}
    if last is not None and last.signer:
        _may_follow(last.signer, signer)
    if signer is not None:
        fields["signer"] = signer.public
        if signer.succeeds is not None:
            fields["succeeds"] = signer.succeeds
    value = marker.value[:-1] + b"," + msgspec.json.encode(fields)[1:]
    if signer is None:
        return marker._replace(value=value), Link(value_digest(value))
    headers = (*marker.headers, (SIGNATURE, signer.sign(value).encode()))
    return marker._replace(value=value, headers=headers), Link(value_digest(value), signer.public)


def _may_follow(last: str, signer: Signer | None) -> None:
    if signer is not None and (
        last == signer.public or (signer.succeeds is not None and signer.succeeds.signer == last)
    ):
        return
    ours = "this worker has no signing key" if signer is None else f"this worker's key is {signer.public}"
    raise ChainError(
        f"the last close marker was signed by {last}, and {ours}, which that one did not endorse; nothing is "
        "committed. Give every worker "
        "the newest file of signing.key_file. If the key is lost, run 'hexveil key signing-lost', and tell your readers"
    )
