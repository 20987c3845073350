"""Whole counts of a fine grid as one text, a fifth to a tenth as long as rows of numbers.

The least count is subtracted, and the rest are whole numbers of four bytes: first the lowest byte of all blocks, row by
row, then the next, up to the highest. These bytes are compressed (zlib, RFC 1950) and written in base64. Noise of scale
λ alone takes log₂(2eλ)/6 characters a block.
"""

import base64
import zlib
from typing import Any

import numpy as np

from dpcore.arrays import FloatArray

MOST_LISTED = 1 << 16
"""Blocks of the largest grid whose counts are rows of numbers; those of a larger one are packed."""
MOST_PACKED = 860_000
"""Characters of the longest packed counts: with edges and all else a message has fewer than 900 000 bytes."""
_BYTES = 4


def packed(counts: FloatArray) -> dict[str, Any]:
    """``counts``, whole numbers that differ by less than 2³², as ``{"least": …, "planes": …}``."""
    whole = np.rint(counts).astype(np.int64)
    above = (whole - whole.min()).astype("<u4")
    planes = above.reshape(-1, 1).view(np.uint8).T.tobytes()
    return {"least": int(whole.min()), "planes": base64.b64encode(zlib.compress(planes, 9)).decode()}


def unpacked(document: dict[str, Any], shape: tuple[int, int]) -> FloatArray:
    """The counts of ``shape`` that were packed. Raises ``ValueError`` for anything else, and never needs more memory
    than that shape does."""
    size, reader = shape[0] * shape[1] * _BYTES, zlib.decompressobj()
    try:
        planes = reader.decompress(base64.b64decode(document["planes"], validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(f"packed counts are not compressed bytes: {error}") from None
    if len(planes) != size or not reader.eof:
        raise ValueError(f"packed counts are not {_BYTES} bytes of each of {shape[0]} x {shape[1]} blocks")
    above = np.frombuffer(planes, dtype=np.uint8).reshape(_BYTES, -1).T.copy().view("<u4")
    return above.reshape(shape).astype(np.float64) + int(document["least"])
