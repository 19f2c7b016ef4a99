"""Pictures decoded to RGB by Pillow, cropped and resized to the networks' input: uint8 (3, side, side); and those in
one folder per class, DIR/CLASS/PICTURE, as an index in a few arrays, so that millions fit in memory.

    pictures = index_pictures(directory, class_folders(directory))
    pictures.path(i), pictures.labels[i]            sorted by class and name
    found, list_file = damaged(pictures, cache_dir)     which fail to decode: {4: "DIR/CLASS/PICTURE: cannot be ..."}

A million pictures of ImageNet take 28 MB and a few seconds. Links are followed, hidden files ignored.

Formats are detected by content, not name: JPEG (colour, grey, CMYK, YCCK), PNG, WebP or BMP. Pillow converts other
modes to RGB: it drops transparency, looks up palettes, and ignores the colour profile of CMYK; of 16 bits the upper 8
are kept. The EXIF orientation is not applied, as in the published pipelines.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....errors import DataError
from ....system.cores import usable_cores
from ....system.files import write_whole
from ....system.importing import import_extra
from ....system.inputs import read_input
from ...files import alone, cache_folder, reading

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
MOST_PIXELS = 89_478_485        # Pillow's own limit, a quarter of 1 GiB of RGB
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10        # of a random crop
MARGIN = 256 / 224              # an evaluated picture's shorter side relative to the crop's
REDUCED = 2                     # a JPEG is decoded at 1/2, 1/4 or 1/8 if its crop keeps this multiple of the side
SYNSET = re.compile(rb"n\d{8}$")
BLOCK = 4096                    # files that checking threads are given at once

Box = tuple[float, float, float, float]         # left, upper, right, lower


def random_crop(path: Path, side: int) -> Tensor:
    """A random part of the picture, resized and flipped half of the time: uint8, shape (3, side, side). Szegedy et al.
    2015 (arXiv:1409.4842), used by Goyal et al. 2017; see ``random_box``. Every call draws as much."""
    *draws, flip = torch.rand(4 * TRIES + 1, dtype=torch.float64).tolist()
    crop = _cropped(path, side, lambda width, height: random_box(width, height, draws))
    return crop.flip(2) if flip < 0.5 else crop


def centre_crop(path: Path, side: int) -> Tensor:
    """The centre of the picture after resizing its shorter side to 256/224 of ``side``: uint8, (3, side, side)."""
    return _cropped(path, side, centre_box)


def undecodable(path: Callable[[int], Path], count: int, threads: int) -> dict[int, str]:
    """Which of the files path(0) .. path(count-1) fail to decode, and why, by index; raises DataError."""
    pillow()
    found: dict[int, str] = {}
    with without_warnings(), ThreadPoolExecutor(threads) as pool:
        for first in range(0, count, BLOCK):            # a block at a time, as each task in waiting takes memory
            block = range(first, min(first + BLOCK, count))
            found.update((i, why) for i, why in zip(block, pool.map(_find_fault, map(path, block))) if why)
    return found


def _find_fault(path: Path) -> str | None:
    content = read_bytes(path)
    try:
        decode(path, content, centre_box, 1)
    except DataError as error:
        return str(error)
    return None


def random_box(width: int, height: int, draws: list[float]) -> Box:
    """A part of 8 % to 100 % of the area (uniform) with a width-to-height ratio of 3/4 to 4/3 (log-uniform). The first
    of ten ``draws``, of four numbers in [0, 1) each, that fits in the picture; else the largest central box."""
    low, high = map(math.log, RATIO)
    for area, ratio, x, y in zip(*[iter(draws)] * 4):
        area = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = math.exp(low + ratio * (high - low))
        w, h = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if w <= width and h <= height:
            left, upper = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, upper, left + w, upper + h
    return _middle(width, height, min(width, height * RATIO[1]), min(height, width / RATIO[0]))


def centre_box(width: int, height: int) -> Box:
    """The central square that remains after resizing the shorter side to 256/224 of it; not rounded to pixels."""
    side = min(width, height) / MARGIN
    return _middle(width, height, side, side)


def _middle(width: int, height: int, w: float, h: float) -> Box:
    left, upper = (width - w) / 2, (height - h) / 2
    return left, upper, left + w, upper + h


def _cropped(path: Path, side: int, choose: Callable[[int, int], Box]) -> Tensor:
    with without_warnings():
        image, box = decode(path, read_bytes(path), choose, side)
    image = image.resize((side, side), pillow().Resampling.BILINEAR, box)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def read_bytes(path: Path) -> bytes:
    with reading(path):
        return read_input(path)


def pillow():
    return import_extra("PIL.Image", "decoding pictures", package="pillow", refused=DataError)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silence Pillow's warnings about pictures that it decodes; the filters are global, so for one thread only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(path: Path, content: bytes, choose: Callable[[int, int], Box], side: int):
    """A Pillow image in RGB and its chosen box, in a scale of which the box keeps REDUCED times the side."""
    Image = pillow()
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(f"its header says {width}x{height} pixels, and at most {MOST_PIXELS} are decoded")
        box = _reduce(image, choose(width, height), side)
        if image.mode.startswith("I"):          # the upper 8 of 16 bits
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB"), box
    except MemoryError:
        raise
    except Image.UnidentifiedImageError:
        what = f"no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" if content else "the file is empty"
    except Exception as error:          # Pillow raises many kinds for damaged files
        what = str(error).partition("\n")[0] or type(error).__name__
    raise DataError(f"{path}: cannot be decoded, {len(content)} bytes: {what}; restore the file, or move it away")


def _reduce(image, box: Box, side: int) -> Box:
    """Decode a JPEG at 1/2, 1/4 or 1/8 if its box keeps REDUCED times the side; returns the box in that scale."""
    width, height = image.size
    scale = max(1, int(min(box[2] - box[0], box[3] - box[1]) / (REDUCED * side)))
    drafted = image.draft(None, (max(1, width // scale), max(1, height // scale)))
    if drafted is None:
        return box
    scale = width / drafted[1][2]
    return box[0] / scale, box[1] / scale, min(box[2] / scale, image.width), min(box[3] / scale, image.height)


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
