"""Pictures in one folder per class, DIR/CLASS/PICTURE: an index in a few arrays, so that millions fit in memory.

    pictures = index_pictures(directory, class_folders(directory))
    pictures.path(i), pictures.labels[i]            sorted by class and name
    found, list_file = damaged(pictures, cache_dir)     which fail to decode: {4: "DIR/CLASS/PICTURE: cannot be ..."}

A million pictures of ImageNet take 28 MB and a few seconds. Links are followed, hidden files ignored.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ....errors import DataError
from ....system.cores import usable_cores
from ....system.files import write_whole
from ...files import alone, cache_folder, reading
from .images import EXTENSIONS, undecodable

SYNSET = re.compile(rb"n\d{8}$")


@dataclass(frozen=True)
class Pictures:
    """The pictures of some classes, by class and name."""

    directory: Path                         # contains one folder per class
    classes: tuple[str, ...]                # their names; labels index them
    names: np.ndarray                       # uint8: the concatenated file names
    ends: np.ndarray                        # int64, shape (n,): the end of each name in ``names``
    labels: np.ndarray                      # int32, shape (n,)
    others: tuple[int, str] = (0, "")       # number of files there without a picture's name, and one of them

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, i: int) -> Path:
        return self.directory / self.name(i)

    def name(self, i: int) -> str:
        start = self.ends[i - 1] if i else 0
        return f"{self.classes[self.labels[i]]}/{os.fsdecode(self.names[start:self.ends[i]].tobytes())}"

    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the classes and file names."""
        found = hashlib.sha256(os.fsencode("/".join(self.classes)))
        for array in (self.names, self.ends, self.labels):
            found.update(array)
        return found.hexdigest()[:16]


def class_folders(directory: Path) -> list[str]:
    """The directory's folders, sorted by name; raises DataError if there are none, or pictures lie beside them."""
    found = []
    for entry in _entries(directory):
        if entry.is_dir():
            found.append(entry.name)
        elif entry.name.lower().endswith(EXTENSIONS) or not entry.is_file():
            raise DataError(f"{directory / entry.name}: lies where each class has a folder of its pictures "
                            f"({directory.name}/CLASS/PICTURE); sort the pictures into such folders")
    if not found:
        raise DataError(f"{directory}: has no folders, and should have one for each class, with its pictures")
    return sorted(found, key=os.fsencode)


def index_pictures(directory: Path, classes: Sequence[str]) -> Pictures:
    """The pictures in these folders; raises DataError for one without pictures or that cannot be read."""
    names, lengths, counts, others, known = [], [], [], [], set(classes)
    for label in classes:
        found, more = _pictures_in(directory / label)
        own = os.fsencode(label)
        for name in found if SYNSET.match(own) else ():
            named = name.partition(b"_")[0]             # another synset, as in n01440764_10026.JPEG
            if named != own and SYNSET.match(named) and os.fsdecode(named) in known:
                raise DataError(f"{directory / label / os.fsdecode(name)}: is named for class {os.fsdecode(named)}, "
                                f"but lies among those of {label}; are folders swapped, or pictures misplaced?")
        names.append(b"".join(found))
        lengths.append(np.fromiter(map(len, found), np.int64, len(found)))
        counts.append(len(found))
        others += more
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return Pictures(directory, tuple(classes), np.frombuffer(b"".join(names), np.uint8),
                    np.cumsum(np.concatenate(lengths)), labels, (len(others), str(others[0]) if others else ""))


def _pictures_in(folder: Path) -> tuple[list[bytes], list[Path]]:
    pictures, others = [], []
    for entry in _entries(folder):
        if not entry.name.lower().endswith(EXTENSIONS):
            others.append(folder / entry.name)
        elif entry.is_file():
            pictures.append(os.fsencode(entry.name))        # raw names: the same order in any locale
        else:
            raise DataError(f"{folder / entry.name}: is a {'folder' if entry.is_dir() else 'link to nothing'}, not a "
                            "picture; restore it, or move it away")
    if not pictures:
        seen = f"; it has {len(others)} others, such as {others[0].name}" if others else ""
        raise DataError(f"{folder}: has no pictures (files named *{', *'.join(EXTENSIONS)}){seen}")
    return sorted(pictures), others


def _entries(folder: Path) -> Iterator[os.DirEntry]:
    with reading(folder), os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


@dataclass(frozen=True)
class Crops:
    """Pictures of these indices, in order, as a map-style data set of (``crop``: uint8 (3, side, side), label)."""

    pictures: Pictures
    order: np.ndarray
    crop: Callable[[Path, int], Tensor]
    side: int

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        i = self.order[place]
        try:
            return self.crop(self.pictures.path(i), self.side), int(self.pictures.labels[i])
        except DataError as error:
            raise DataError(f"{error}. --data-arg skip_broken=true leaves out what cannot be decoded") from None


def damaged(pictures: Pictures, cache_dir: str | None) -> tuple[dict[int, str], Path]:
    """The pictures that fail to decode, by index, with the reason, and the file in the cache folder that lists them.
    Every file is read once, by one process per host, in about a millisecond per picture and core. Pictures restored or
    damaged later go unnoticed until the list is deleted. Raises DataError."""
    key = hashlib.sha256(os.fsencode(pictures.directory.absolute()) + pictures.fingerprint().encode())
    path = cache_folder(cache_dir) / f"damaged-{key.hexdigest()[:16]}.json"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with alone(path):
                if not path.exists():
                    found = undecodable(pictures.path, len(pictures), len(usable_cores()))
                    text = json.dumps([[i, pictures.name(i), why] for i, why in found.items()], indent=1)
                    write_whole(path, text + "\n")
    except OSError as error:
        raise DataError(f"{path}: the list of damaged pictures cannot be kept: {error.strerror or error}; name "
                        "another folder: --set cache_dir=DIR") from None
    try:
        found = {int(i): str(why) for i, _, why in json.loads(path.read_text(encoding="ascii"))}
        if not all(0 <= i < len(pictures) for i in found):
            raise ValueError("it names pictures that are not there")
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is not a list of damaged pictures ({error}); delete it, and it is made again"
                        ) from None
    return found, path
