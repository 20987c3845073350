"""Unpacks the batches of messages that aiokafka reads, within bounds.

Kafka limits the stored size of a batch, but 36 kB on disk may unpack into gigabytes, and an empty header of a message,
which has two bytes, takes eighty as an object. aiokafka has no setting for such limits, so this module replaces the
codecs of its readers.
"""

import threading
import zlib
from collections.abc import Callable

import aiokafka.record.default_records as plain_records
import cramjam
from aiokafka.record.util import decode_varint_py as decode_varint  # the compiled one reads beyond the end

MAX_BATCH_BYTES = 16 << 20
"""Largest unpacked size of one batch."""
MAX_HEADERS_BYTES = 1 << 16
"""Most bytes that the headers of one message take in a batch of more than 1 MiB: read, they take forty times that."""
_ORDINARY_BYTES = 1 << 20
_SHORTEST_RECORD = 6
"""Bytes of a message without key, value and headers."""
_PIECE_BYTES = 4_096
"""At the end of each member zlib copies what is left of its input, so it gets pieces."""


class BatchTooLargeError(ValueError):
    """A batch that is larger than :data:`MAX_BATCH_BYTES` when unpacked, or has too many headers, or is damaged."""


class _Scratch(threading.local):
    """Room to unpack one batch, of each thread its own: the codecs let other threads run while they unpack."""

    def __init__(self) -> None:
        self.room = bytearray(MAX_BATCH_BYTES)
        self.bytes_unpacked = 0
        """Bytes of all packed batches, and of what they unpacked into; refused ones count as the largest."""


scratch = _Scratch()


def bounded(decompress_into: Callable[[bytes, bytearray], int]) -> Callable[[bytes], bytes]:
    """A codec that unpacks at most :data:`MAX_BATCH_BYTES`, from one that unpacks into a buffer and returns the size.

    Raises :class:`BatchTooLargeError`.
    """

    def decode(payload: bytes) -> bytes:
        room = scratch.room
        try:
            size = decompress_into(payload, room)
        except cramjam.DecompressionError as error:
            raise BatchTooLargeError(f"more than {MAX_BATCH_BYTES >> 20} MiB unpacked, or damaged: {error}") from None
        return bytes(memoryview(room)[:size])

    return decode


def gzip_decode(payload: bytes) -> bytes:
    """At most :data:`MAX_BATCH_BYTES` from a gzip of one or several members; raises :class:`BatchTooLargeError`."""
    stream, parts, left, at = zlib.decompressobj(31), [], MAX_BATCH_BYTES, 0
    while at < len(payload):
        piece = payload[at : at + _PIECE_BYTES]
        part = stream.decompress(piece, left + 1)
        left -= len(part)
        if left < 0:
            raise BatchTooLargeError(f"more than {MAX_BATCH_BYTES >> 20} MiB unpacked")
        parts.append(part)
        at += len(piece) - len(stream.unused_data)
        if stream.eof:
            stream = zlib.decompressobj(31)
            while payload[at : at + 1] == b"\0":
                at += 1
    return b"".join(parts)


_XERIAL = b"\x82SNAPPY\x00"


def snappy_into(payload: bytes, scratch: bytearray) -> int:
    """Unpack Snappy, raw or in the frames of snappy-java, into ``scratch``; returns the size."""
    if bytes(payload[:8]) != _XERIAL:
        return int(cramjam.snappy.decompress_raw_into(payload, scratch))
    view, space, at, size = memoryview(payload), memoryview(scratch), 16, 0
    while at < len(view):
        end = at + 4 + int.from_bytes(view[at : at + 4], "big")
        block = bytearray(min(cramjam.snappy.decompress_raw_len(view[at + 4 : end]), len(space) - size))
        length = int(cramjam.snappy.decompress_raw_into(view[at + 4 : end], block))
        space[size : size + length] = block[:length]
        size, at = size + length, end
    return size


def _counted(codec: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A codec whose bytes are counted, and that refuses a large batch with a message of too many headers."""

    def decode(payload: bytes) -> bytes:
        size = MAX_BATCH_BYTES  # if it is refused
        try:
            records = codec(payload)
            size = len(records)
        finally:
            scratch.bytes_unpacked += len(payload) + size
        if len(records) > _ORDINARY_BYTES:
            _check_headers(records)
        return records

    return decode


def _check_headers(records: bytes) -> None:
    at = 0
    while at < len(records):
        length, begin = decode_varint(records, at)
        at = begin + length
        if length < _SHORTEST_RECORD:
            raise BatchTooLargeError("a message is damaged")
        if length > MAX_HEADERS_BYTES and at - _end_of_value(records, begin) > MAX_HEADERS_BYTES:
            raise BatchTooLargeError(f"the headers of a message take more than {MAX_HEADERS_BYTES >> 10} KiB")


def _end_of_value(records: bytes, begin: int) -> int:
    """Where in ``records`` the value of the message ends whose attributes, times, key and value begin at ``begin``."""
    _, at = decode_varint(records, begin + 1)
    _, at = decode_varint(records, at)
    for _ in ("key", "value"):
        length, at = decode_varint(records, at)
        at += max(length, 0)
    return int(at)


def _install() -> None:
    """Replace the codecs that aiokafka's readers use by the bounded ones."""
    modules = [plain_records]
    try:
        import aiokafka.record._crecords.default_records as compiled_records
    except ImportError:  # aiokafka was built without its compiled readers
        pass
    else:
        modules.append(compiled_records)
    for module in modules:
        module.gzip_decode = _counted(gzip_decode)
        module.snappy_decode = _counted(bounded(snappy_into))
        module.lz4_decode = _counted(bounded(cramjam.lz4.decompress_into))
        module.zstd_decode = _counted(bounded(cramjam.zstd.decompress_into))


_install()
