"""Which pictures of a data set fail to decode: every file is read once, and the list is kept in the cache folder.

    found, list_file = damaged(pictures, cache_dir)     {4: "DIR/CLASS/PICTURE: cannot be decoded, ..."}, a JSON file
"""
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from ....errors import DataError
from ....system.cores import usable_cores
from ....system.files import write_whole
from ..cache import alone, cache_folder
from .folders import Pictures
from .images import undecodable


def damaged(pictures: Pictures, cache_dir: str | None) -> tuple[dict[int, str], Path]:
    """The pictures that fail to decode, by index, with the reason, and the file that keeps this list.

    It takes about a millisecond per picture and core, once for each folder and set of file names. One process per host
    reads the files while the others wait. Pictures restored or damaged later go unnoticed until the list is deleted.
    Raises DataError for an unreadable file, and if the list cannot be written.
    """
    key = hashlib.sha256(os.fsencode(pictures.directory.absolute()) + pictures.fingerprint().encode())
    path = cache_folder(cache_dir) / f"damaged-{key.hexdigest()[:16]}.json"
    if path.exists():
        return _read(path, pictures), path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path):
            if not path.exists():
                found = undecodable(pictures.path, len(pictures), len(usable_cores()))
                text = json.dumps([[i, pictures.name(i), why] for i, why in found.items()], indent=1)
                write_whole(path, text + "\n")
    except OSError as error:
        raise DataError(f"{path}: the list of damaged pictures cannot be kept: {error.strerror or error}; name "
                        "another folder: --set cache_dir=DIR") from None
    return _read(path, pictures), path


def _read(path: Path, pictures: Pictures) -> dict[int, str]:
    try:
        found = {int(i): str(why) for i, _, why in json.loads(path.read_text(encoding="ascii"))}
        if all(0 <= i < len(pictures) for i in found):
            return found
        reason = "it names pictures that are not there"
    except (OSError, ValueError, TypeError) as error:
        reason = str(error)
    raise DataError(f"{path}: is not a list of damaged pictures ({reason}); delete it, and it is made again")
