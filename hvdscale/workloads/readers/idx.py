"""IDX files, as MNIST and Fashion-MNIST are published: gzip or plain."""
from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ...errors import DataError

UNSIGNED_BYTE = 0x08
GZIP = b"\x1f\x8b"


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The array of unsigned bytes in an IDX file, with the given number of dimensions.

    Raises DataError naming the file where it cannot be read, its magic number is another, or its length is not what its
    header says.
    """
    content = _read(path)
    wanted = UNSIGNED_BYTE << 8 | dimensions
    magic = int.from_bytes(content[:4], "big")
    if len(content) < 4 or magic != wanted:
        raise DataError(f"{path}: starts with magic number 0x{magic:08x}, not 0x{wanted:08x} (IDX, unsigned bytes, "
                        f"{dimensions} dimensions); is it another of the data set's files?")
    header = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist()) if len(content) >= header else ()
    needed = header + math.prod(shape) if shape else header
    if len(content) != needed or not shape:
        raise DataError(f"{path}: has {len(content)} bytes, not the {needed} that its header needs for shape "
                        f"{shape}; it is truncated or damaged, fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == GZIP else content
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: its gzip data ends early or is damaged ({error}); fetch it again") from None
