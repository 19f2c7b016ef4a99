"""IDX files, as MNIST and Fashion-MNIST are published."""
from __future__ import annotations

import math

import numpy as np

from ...errors import DataError
from .files import Found

UNSIGNED_BYTE = 0x08


def read_idx(file: Found, dimensions: int) -> np.ndarray:
    """The array of unsigned bytes in an IDX file with this number of dimensions: a view of the file's bytes.

    Raises DataError naming the file for another magic number, or a length that contradicts its header.
    """
    content = file.content
    wanted = UNSIGNED_BYTE << 8 | dimensions
    magic = int.from_bytes(content[:4], "big")
    if len(content) < 4 or magic != wanted:
        raise DataError(f"{file.where}: starts with magic number 0x{magic:08x}, not 0x{wanted:08x} (IDX, unsigned "
                        f"bytes, {dimensions} dimensions); is it another of the data set's files?")
    header = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:header], ">u4").tolist()) if len(content) >= header else ()
    needed = header + math.prod(shape) if shape else header
    if len(content) != needed or not shape:
        raise DataError(f"{file.where}: has {len(content)} bytes, not the {needed} that its header needs for shape "
                        f"{shape}; it is truncated or damaged, fetch it again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
