"""Which pictures of a data set do not decode: every file is read once, and what was found is kept in the cache folder.

    found, kept_in = damaged(pictures, cache_dir)       {4: "DIR/CLASS/PICTURE: cannot be decoded, ..."}, a JSON file
"""
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from ...errors import DataError
from ...system.cores import usable_cores
from ...system.files import write_whole
from ..cache import alone, cache_folder
from .folders import Pictures
from .images import undecodable


def damaged(pictures: Pictures, cache_dir: str | None) -> tuple[dict[int, str], Path]:
    """The pictures that do not decode, by their place, with what is wrong; and the file that keeps this.

    It takes about a millisecond a picture and core, once for these names in this folder: one process of a host reads
    the files while the others wait for its list. A picture that is restored or damaged later is not noticed until the
    list is deleted. Raises DataError for a file that cannot be read at all, and a list that cannot be kept.
    """
    key = hashlib.sha256(os.fsencode(pictures.directory.absolute()) + pictures.fingerprint().encode())
    kept_in = cache_folder(cache_dir) / f"damaged-{key.hexdigest()[:16]}.json"
    if kept_in.exists():
        return _read(kept_in, pictures), kept_in
    try:
        kept_in.parent.mkdir(parents=True, exist_ok=True)
        with alone(kept_in):
            if not kept_in.exists():
                _write(kept_in, undecodable(pictures.path, len(pictures), len(usable_cores())), pictures)
    except OSError as error:
        raise DataError(f"{kept_in}: the list of damaged pictures cannot be kept: {error.strerror or error}; name "
                        "another folder: --set cache_dir=DIR") from None
    return _read(kept_in, pictures), kept_in


def _write(path: Path, found: dict[int, str], pictures: Pictures) -> None:
    text = json.dumps([[i, pictures.name(i), why] for i, why in found.items()], indent=1)
    write_whole(path, text + "\n")


def _read(path: Path, pictures: Pictures) -> dict[int, str]:
    try:
        found = {int(i): str(why) for i, _, why in json.loads(path.read_text(encoding="ascii"))}
        if all(0 <= i < len(pictures) for i in found):
            return found
        reason = "it names pictures that are not there"
    except (OSError, ValueError, TypeError) as error:
        reason = str(error)
    raise DataError(f"{path}: is not a list of damaged pictures ({reason}); delete it, and it is made again")
