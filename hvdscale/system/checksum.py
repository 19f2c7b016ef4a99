"""The checksum of a file."""
from __future__ import annotations

import hashlib
import os

from ..errors import DataError, HvdscaleError


def sha256_of(path: str | os.PathLike, refused: type[HvdscaleError] = DataError) -> str:
    """The SHA-256 of a file, in hexadecimal; raises ``refused`` where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise refused(f"{path}: cannot be read: {error.strerror or error}") from None
    return digest.hexdigest()
