"""Records of the binary versions of CIFAR-10 and CIFAR-100: label bytes, then 1,024 bytes each of red, green and blue.

See https://www.cs.toronto.edu/~kriz/cifar.html: one label byte in CIFAR-10; two in CIFAR-100, the coarse and the fine
one; pixels row by row.
"""
from __future__ import annotations

import numpy as np

from ...errors import DataError
from .files import Found

CHANNELS, SIDE = 3, 32
PIXELS = CHANNELS * SIDE * SIDE


def read_records(file: Found, classes: tuple[int, ...], records: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 (records, 3, 32, 32), and labels, uint8 (records, label bytes): views of the file's bytes.

    Raises DataError if the file does not hold exactly this many records, or for a label that is not a class.

    classes  number of classes of each label byte
    """
    length = len(classes) + PIXELS
    whole, rest = divmod(len(file.content), length)
    if (whole, rest) != (records, 0):
        more = f" and {rest} bytes" if rest else ""
        raise DataError(f"{file.where}: has {len(file.content)} bytes, {whole} records of {length} bytes{more}, not "
                        f"the {records * length} of {records} records; it is cut off, damaged or another data set's, "
                        "fetch it again")
    table = np.frombuffer(file.content, np.uint8).reshape(records, length)
    labels = table[:, :len(classes)]
    for column, count in enumerate(classes):
        bad = labels[:, column] >= count
        if bad.any():
            at = int(bad.argmax())
            raise DataError(f"{file.where}: record {at} has label {labels[at, column]}, byte {at * length + column} of "
                            f"the file, which is not one of 0 .. {count - 1}; it is damaged or another data set's")
    return table[:, len(classes):].reshape(-1, CHANNELS, SIDE, SIDE), labels
