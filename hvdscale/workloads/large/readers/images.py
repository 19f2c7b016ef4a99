"""Pictures decoded to RGB by Pillow, cropped and resized to the networks' input: uint8 (3, side, side).

Formats are detected by content, not name: JPEG (colour, grey, CMYK, YCCK), PNG, WebP or BMP. Pillow converts other
modes to RGB: it drops transparency, looks up palettes, and ignores the colour profile of CMYK; of 16 bits the upper 8
are kept. The EXIF orientation is not applied, as in the published pipelines.
"""
from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ....errors import DataError
from ....system.importing import import_extra
from ....system.inputs import read_input
from ...files import reading

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
MOST_PIXELS = 89_478_485        # Pillow's own limit, a quarter of 1 GiB of RGB
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10        # of a random crop
MARGIN = 256 / 224              # an evaluated picture's shorter side relative to the crop's
REDUCED = 2                     # a JPEG is decoded at 1/2, 1/4 or 1/8 if its crop keeps this multiple of the side
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
    content = read_bytes(path)
    with without_warnings():
        image, box = decode(path, content, choose, side)
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
