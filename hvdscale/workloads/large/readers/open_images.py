"""Open Images: image-level labels from CSV files, plain or gzip, and the paths of the images.

    classes = read_classes(folder)                                  the trainable ones
    labels = read_labels(find_labels(folder, "train", "human"), classes)
    images = find_images(folder, "train")
    path = images.path(0)

The files of version 4 (storage.googleapis.com/openimages/2018_04) are in one folder, or those of each part in train/,
validation/ and test/, as published:

    class-descriptions.csv                      label name and description: /m/0k4j,Car
    classes-trainable.txt                       one label name per line
    train-annotations-human-imagelabels.csv     ImageID,Source,LabelName,Confidence, then 27,894,289 lines
    train-annotations-machine-imagelabels.csv   the same format, 78,977,695 lines

An image's name is 16 hexadecimal digits. Confidence is 1 if a person confirmed the label and 0 if a person rejected it;
for machine labels it is a fraction. Established from the data set's README and the tensorflow-datasets loader: names,
header and columns; description files of version 4 have no header, later ones start with LabelName,DisplayName. Not
established: that no pair of image and label occurs twice.
"""
from __future__ import annotations

import gzip
import os
import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....errors import DataError
from ...files import GZIP, reading

HEADER, DESCRIPTION_HEADER = b"ImageID,Source,LabelName,Confidence", b"LabelName,DisplayName"
SOURCES = {"human": (b"verification", b"crowdsource-verification"), "machine": (b"machine",)}
DIGITS, SOURCE_WIDTH, CONFIDENCE_WIDTH = 16, 24, 8         # of an image's name; widest fields
MOST_CLASSES = 2**16
CHUNK = 1 << 20                 # bytes parsed at once
BLOCK = 1 << 18                 # images whose labels are counted at once
IMAGE_FILE = re.compile(r"([0-9a-f]{16})\.jpg")
NEWLINE, COMMA = 10, 44

NIBBLES = np.full(256, 255, np.uint8)       # character -> the hexadecimal digit's value
NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


@dataclass(frozen=True)
class Classes:
    """Label names, and which of them are trainable.

    names    (n,) bytes, sorted: all described names
    numbers  (n,) int32: the class, its index in classes-trainable.txt; -1 for a name that is not trainable
    """

    names: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        return int((self.numbers >= 0).sum())


@dataclass(frozen=True)
class Labels:
    """Labels of trainable classes by image; those of image i are at starts[i] .. starts[i+1]-1.

    images      (m,) uint64, increasing: the names as numbers
    starts      (m + 1,) int64
    classes     (k,) uint16
    positive    (k,) bool: whether the image shows the class
    """

    images: np.ndarray
    starts: np.ndarray
    classes: np.ndarray
    positive: np.ndarray

    def has_positive(self) -> np.ndarray:
        """Whether each image has a positive label: (m,) bool."""
        return self._counts(self.positive) > 0

    def only(self, images: np.ndarray, positive: bool = False) -> Labels:
        """The labels of the selected images, (m,) bool; with ``positive`` only the positive ones."""
        if images.all() and not positive:
            return self
        rows = np.repeat(images, np.diff(self.starts))
        if positive:
            rows &= self.positive
        counts = self._counts(rows)
        left = counts > 0
        return Labels(self.images[left], _starts(counts[left]), self.classes[rows], self.positive[rows])

    def _counts(self, rows: np.ndarray) -> np.ndarray:
        """The number of selected rows, (k,) bool, of each image: (m,); every image has a row."""
        counts = np.zeros(len(self.images), np.int64)
        for first in range(0, len(counts), BLOCK):          # numpy converts a whole block to int64
            starts = self.starts[first:first + BLOCK + 1]
            counts[first:first + BLOCK] = np.add.reduceat(rows[starts[0]:starts[-1]], starts[:-1] - starts[0],
                                                          dtype=np.int64)
        return counts

    def of(self, image: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """One image's classes, and whether each is positive; empty if it has no labels."""
        at = int(np.searchsorted(self.images, image))
        found = at < len(self.images) and self.images[at] == image
        part = slice(*self.starts[at:at + 2]) if found else slice(0)
        return self.classes[part], self.positive[part]


@dataclass(frozen=True)
class Images:
    """Image files: names (m,) uint64, increasing, and the index of each one's folder, (m,) uint16."""

    names: np.ndarray
    where: np.ndarray
    folders: tuple[Path, ...]

    def path(self, index: int) -> Path:
        return self.folders[self.where[index]] / f"{self.names[index]:0{DIGITS}x}.jpg"

    def only(self, images: np.ndarray) -> Images:
        """The files of these images, which must exist; increasing names."""
        at = np.searchsorted(self.names, images)
        return Images(self.names[at], self.where[at], self.folders)


def among(names: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Whether each of the images, (n,), is in ``names``, which increase: (n,) bool."""
    if len(names) == 0:
        return np.zeros(len(images), bool)
    at = np.searchsorted(names, images)
    return names[np.minimum(at, len(names) - 1, out=at)] == images


def find_labels(folder: Path, part: str, kind: str) -> Path:
    """The label file of a part, "human" or "machine"; raises DataError naming the missing file."""
    name = f"{part}-annotations-{kind}-imagelabels.csv"
    return _find(folder, name, [folder, folder / part])


def _find(folder: Path, name: str, places: list[Path]) -> Path:
    for place in places:
        for candidate in (place / name, place / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    beside = f", nor has {places[1].name}/" if len(places) > 1 else ""
    missing = "" if folder.is_dir() else "; there is no such folder"
    raise DataError(f"{folder}: has no {name} or {name}.gz{beside}{missing}")


def read_classes(folder: Path) -> Classes:
    """The trainable classes, in the order of classes-trainable.txt; raises DataError naming file and line."""
    described = _read_names(_find(folder, "class-descriptions.csv", [folder]), DESCRIPTION_HEADER)
    path = _find(folder, "classes-trainable.txt", [folder])
    trained = _read_names(path, None)
    for name, line in trained.items():
        if name not in described:
            raise DataError(f"{path}: line {line}: {_quote(name)} is not a label name of class-descriptions.csv; are "
                            "the files of one version?")
    if len(trained) > MOST_CLASSES:
        raise DataError(f"{path}: has {len(trained)} classes; at most {MOST_CLASSES} can be trained")
    names = np.array(sorted(described))
    numbers = np.full(len(names), -1, np.int32)
    numbers[np.searchsorted(names, np.array(list(trained)))] = np.arange(len(trained))
    return Classes(names, numbers)


def _read_names(path: Path, header: bytes | None) -> dict[bytes, int]:
    """The label names at the start of the lines, with their line numbers."""
    names: dict[bytes, int] = {}
    for number, text in enumerate(b"".join(text for _, text in _chunks(path)).splitlines(), 1):
        if number == 1 and text == header:
            continue
        name = text.partition(b",")[0] if header else text
        if not re.fullmatch(rb"/[!-+\--~]+", name):
            raise DataError(f"{path}: line {number}: {_quote(text)} does not begin with a label name such as /m/0k4j")
        if name in names:
            raise DataError(f"{path}: line {number}: {_quote(name)} is already in line {names[name]}")
        names[name] = number
    if not names:
        raise DataError(f"{path}: has no label names; fetch it again")
    return names


def read_labels(path: Path, classes: Classes, least: float | None = None) -> Labels:
    """The labels of trainable classes in a file.

    least  None: labels by people, 0 or 1. Else machine labels: positive from this confidence on, otherwise ignored

    The file is read in chunks; the arrays take 3 bytes per label and 16 per image. Raises DataError naming file and
    line for anything not as published.
    """
    kind = "human" if least is None else "machine"
    columns = [array(code) for code in "QIHB"]          # image, count, class, positive: arrays that grow in place
    seen = False
    for first, text in _chunks(path):
        if first == 1:
            header, _, text = text.partition(b"\n")
            if header != HEADER:
                raise DataError(f"{path}: line 1: the header is {_quote(header)}, not {HEADER.decode()}; is it another "
                                "of the data set's files?")
            first = 2
        if not text:
            continue
        images, numbers, confidence = _Piece(path, first, text).read(kind, classes)
        seen = True
        rows = numbers >= 0 if least is None else (numbers >= 0) & (confidence >= least)
        images, bounds = images[rows], _firsts(images[rows])
        found = images[bounds], np.diff(bounds, append=len(images)), numbers[rows], confidence[rows] >= (least or 1.0)
        for column, values in zip(columns, found):
            column.frombytes(values.astype(column.typecode).tobytes())
    if not seen:
        raise DataError(f"{path}: has no labels, nothing after its header; fetch it again")
    images, counts, numbers, positive = (np.frombuffer(column, column.typecode) for column in columns)
    return Labels(*_by_image(images, counts, numbers, positive.view(bool)))


def _firsts(images: np.ndarray) -> np.ndarray:
    """The start of each run of equal images."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(images)), bool), images[1:] != images[:-1]]))


def _by_image(images: np.ndarray, counts: np.ndarray, classes: np.ndarray,
              positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Runs of labels of one image each, sorted by image: images, starts, classes, positive."""
    if (images[1:] < images[:-1]).any():            # the published files are sorted
        order = np.argsort(images, kind="stable")
        rows = np.argsort(np.repeat(np.argsort(order), counts).astype(np.uint32), kind="stable")
        images, counts, classes, positive = images[order], counts[order], classes[rows], positive[rows]
    firsts = _firsts(images)
    if len(firsts) < len(images):                   # a run that spans chunks
        images, counts = images[firsts], np.add.reduceat(counts, firsts, dtype=counts.dtype)
    return images, _starts(counts), classes, positive


def _starts(counts: np.ndarray) -> np.ndarray:
    """The starts of runs of these lengths, and the end of the last: (m + 1,) int64."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


class _Piece:
    """Whole lines of a label file, parsed into columns all at once.

    first  the line number of the first one
    """

    def __init__(self, path: Path, first: int, text: bytes):
        self._path, self._first, self._text = path, first, text
        self._bytes = np.frombuffer(text + bytes(64), np.uint8)     # padded, so that every field has a window
        self._ends = np.flatnonzero(self._bytes == NEWLINE)
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])

    def read(self, kind: str, classes: Classes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each line's image (uint64), class or -1 (int32) and confidence (float64)."""
        commas = np.flatnonzero(self._bytes == COMMA)
        self._refuse(np.searchsorted(commas, self._ends) != 3 * np.arange(1, len(self._ends) + 1),
                     "has not the four fields ImageID,Source,LabelName,Confidence")
        image_end, source_end, label_end = commas.reshape(-1, 3).T
        images, sources = self._images(image_end), self._column(image_end, source_end, SOURCE_WIDTH)
        self._refuse(~np.isin(sources, SOURCES[kind]), f"the source is not {b' or '.join(SOURCES[kind]).decode()}; is "
                                                       "it another of the data set's files?")
        names = self._column(source_end, label_end, classes.names.itemsize + 1)
        at = np.minimum(np.searchsorted(classes.names, names), len(classes.names) - 1)
        self._refuse(classes.names[at] != names, "the label name is not one of class-descriptions.csv")
        confidence = self._confidence(self._column(label_end, self._ends, CONFIDENCE_WIDTH), kind)
        return images, classes.numbers[at], confidence

    def _images(self, ends: np.ndarray) -> np.ndarray:
        digits = NIBBLES[sliding_window_view(self._bytes, DIGITS)[self._starts]]
        self._refuse((ends - self._starts != DIGITS) | (digits == 255).any(1),
                     f"the image's name is not {DIGITS} hexadecimal digits, 0-9 and a-f")
        return (digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8")[:, 0].astype(np.uint64)

    def _column(self, before: np.ndarray, end: np.ndarray, width: int) -> np.ndarray:
        """The fields between two separators, as bytes of fixed width; longer ones are cut."""
        fields = sliding_window_view(self._bytes, width)[before + 1]
        fields[np.arange(width) >= (end - before - 1)[:, None]] = 0
        return fields.view(f"S{width}")[:, 0]

    def _confidence(self, fields: np.ndarray, kind: str) -> np.ndarray:
        known, where = np.unique(fields.view(np.uint64), return_inverse=True)
        values = np.array([_number(field) for field in known.view(fields.dtype)])[where]
        if kind == "human":
            self._refuse((values != 0) & (values != 1), "the confidence of a label by people is not 0 or 1")
        self._refuse(~((values >= 0) & (values <= 1)), "the confidence is not a number of 0 .. 1")
        return values

    def _refuse(self, wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            line = int(wrong.argmax())
            text = self._text[self._starts[line]:self._ends[line]]
            raise DataError(f"{self._path}: line {self._first + line}: {_quote(text)}: {why}")


def _number(field: bytes) -> float:
    """The field's number; NaN if it is none."""
    return float(field) if re.fullmatch(rb"\d(\.\d+)?", field) else float("nan")


def _quote(text: bytes) -> str:
    """The start of a line, printable."""
    more = "..." if len(text) > 80 else ""
    return f"'{repr(text[:80])[2:-1]}{more}'"


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in chunks of whole lines, each with its first line number; raises DataError if the file cannot be read
    or ends within a line.
    """
    rest, line = b"", 1
    try:
        with reading(path), path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(GZIP) else raw
            while piece := file.read(CHUNK):
                whole, newline, rest = (rest + piece).rpartition(b"\n")
                if not newline and len(rest) > CHUNK:
                    raise DataError(f"{path}: line {line} does not end within {CHUNK} bytes; it is not a text file")
                text = whole + newline
                if b"\r" in text:
                    text = text.replace(b"\r\n", b"\n")
                if text:
                    yield line, text
                line += text.count(b"\n")
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: its gzip data ends early or is damaged, after line {line - 1} ({error}); fetch it "
                        "again") from None
    if rest:
        raise DataError(f"{path}: line {line}: {_quote(rest)}: the file ends within a line; it is truncated, fetch it "
                        "again (or, if it is whole, end its last line)")
    if line == 1:
        raise DataError(f"{path}: is empty; fetch it again")


def find_images(folder: Path, part: str) -> Images:
    """The image files of a part: in its folder, in folders below it, or in train_0, train_1, ... beside it, as
    unpacked. Raises DataError if there are none.
    """
    found: list[tuple[Path, np.ndarray]] = []
    for place in [folder / part, *sorted(folder.glob(f"{part}_*"))]:
        if place.is_dir():
            found += _scan(place, 1)
    if not found:
        raise DataError(f"{folder}: has no images in {part}/, such as {part}/000026e7ee790996.jpg")
    names = np.concatenate([names for _, names in found])
    where = np.repeat(np.arange(len(found), dtype=np.uint16), [len(names) for _, names in found])
    names, first = np.unique(names, return_index=True)
    return Images(names, where[first], tuple(place for place, _ in found))


def _scan(place: Path, depth: int) -> list[tuple[Path, np.ndarray]]:
    """Folders with images and their names, down to this depth."""
    within = []

    def numbers() -> Iterator[int]:
        with os.scandir(place) as entries:
            for entry in entries:
                match = IMAGE_FILE.fullmatch(entry.name)
                if match:
                    yield int(match[1], 16)
                elif depth and entry.is_dir():
                    within.append(Path(entry.path))
    with reading(place):
        names = np.fromiter(numbers(), np.uint64)
    deeper = [found for folder in sorted(within) for found in _scan(folder, depth - 1)]
    return [(place, names), *deeper] if len(names) else deeper
