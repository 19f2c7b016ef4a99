"""Open Images: image-level labels from CSV files, plain or gzip, and the paths of the images.

The files of version 4 (storage.googleapis.com/openimages/2018_04) are in one folder, or those of each part in train/,
validation/ and test/, as published:

    class-descriptions.csv                      label name and description: /m/0k4j,Car
    classes-trainable.txt                       one label name per line
    train-annotations-human-imagelabels.csv     ImageID,Source,LabelName,Confidence, then 27,894,289 lines
    train-annotations-machine-imagelabels.csv   the same format, 78,977,695 lines

An image's name is 16 hexadecimal digits. Confidence is 1 if a person confirmed the label and 0 if a person rejected it;
for machine labels it is a fraction. Established from the data set's README and the tensorflow-datasets loader; not
established: that no pair of image and label occurs twice.
"""
from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....errors import DataError
from ...files import opened, reading

HEADER, DESCRIPTION_HEADER = b"ImageID,Source,LabelName,Confidence", b"LabelName,DisplayName"
MOST_CLASSES = 2**16
CHUNK = 1 << 20                 # bytes parsed at once
NEWLINE = b"\n"
IMAGE_FILE = re.compile(r"([0-9a-f]{16})\.jpg")


def _fields(source: bytes, sources: str, confidence: bytes, which: str) -> tuple[tuple[bytes, str], ...]:
    """The pattern of each field of a line, and what is wrong with one that does not match."""
    return ((rb"([0-9a-f]{16})", "the image's name is not 16 hexadecimal digits, 0-9 and a-f"),
            (source, f"the source is not {sources}; is it another of the data set's files?"),
            (rb"([^,\n]*)", ""), (confidence, f"the confidence {which}"))


FIELDS = {"human": _fields(rb"(?:crowdsource-)?verification", "verification or crowdsource-verification",
                           rb"([01](?:\.0+)?)", "of a label by people is not 0 or 1"),
          "machine": _fields(rb"machine", "machine", rb"(0(?:\.\d+)?|1(?:\.0+)?)", "is not a number of 0 .. 1")}
LINES = {kind: re.compile(rb"^" + b",".join(pattern for pattern, _ in fields) + rb"$", re.MULTILINE)
         for kind, fields in FIELDS.items()}


@dataclass(frozen=True)
class Labels:
    """Labels of trainable classes by image; those of image i are at starts[i] .. starts[i+1]-1."""

    images: np.ndarray          # (m,) uint64, increasing: the names as numbers
    starts: np.ndarray          # (m + 1,) int64
    classes: np.ndarray         # (k,) uint16
    positive: np.ndarray        # (k,) bool: whether the image shows the class

    def only(self, images: np.ndarray, positive: bool = False) -> Labels:
        rows = np.repeat(images, np.diff(self.starts))
        if positive:
            rows &= self.positive
        counts = self.counts(rows)
        left = counts > 0
        return Labels(self.images[left], _starts(counts[left]), self.classes[rows], self.positive[rows])

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """The number of selected rows, (k,) bool, of each image: (m,); every image has a row."""
        return np.diff(np.cumsum(rows, dtype=np.uint32)[self.starts[1:] - 1], prepend=np.uint32(0))

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
        return self.folders[self.where[index]] / f"{self.names[index]:016x}.jpg"

    def only(self, images: np.ndarray) -> Images:
        at = np.searchsorted(self.names, images)
        return Images(self.names[at], self.where[at], self.folders)


def among(names: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Whether each of the images, (n,), is in ``names``, which increase: (n,) bool."""
    if len(names) == 0:
        return np.zeros(len(images), bool)
    at = np.searchsorted(names, images)
    return names[np.minimum(at, len(names) - 1, out=at)] == images


def find_labels(folder: Path, part: str, kind: str) -> Path:
    return _find(folder, f"{part}-annotations-{kind}-imagelabels.csv", [folder, folder / part])


def _find(folder: Path, name: str, places: list[Path]) -> Path:
    for place in places:
        for candidate in (place / name, place / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    beside = f", nor has {places[1].name}/" if len(places) > 1 else ""
    missing = "" if folder.is_dir() else "; there is no such folder"
    raise DataError(f"{folder}: has no {name} or {name}.gz{beside}{missing}")


def read_classes(folder: Path) -> dict[bytes, int]:
    """The class of each described label name: its index in classes-trainable.txt, -1 where it is not trainable."""
    described = _read_names(_find(folder, "class-descriptions.csv", [folder]), DESCRIPTION_HEADER)
    path = _find(folder, "classes-trainable.txt", [folder])
    trained = _read_names(path, None)
    for name, line in trained.items():
        if name not in described:
            raise DataError(f"{path}: line {line}: {_quote(name)} is not a label name of class-descriptions.csv; are "
                            "the files of one version?")
    if len(trained) > MOST_CLASSES:
        raise DataError(f"{path}: has {len(trained)} classes; at most {MOST_CLASSES} can be trained")
    return {**dict.fromkeys(described, -1), **{name: number for number, name in enumerate(trained)}}


def _read_names(path: Path, header: bytes | None) -> dict[bytes, int]:
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


def read_labels(path: Path, classes: Mapping[bytes, int], least: float | None = None) -> Labels:
    """The labels of trainable classes in a file; raises DataError naming file and line.

    least  None: labels by people, 0 or 1. Else machine labels: positive from this confidence on, otherwise ignored
    """
    kind = "human" if least is None else "machine"
    columns = [array(code) for code in "QHB"]           # image, class, positive: arrays that grow in place
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
        images, numbers, confidence = _parse(path, first, text, kind, classes)
        seen = True
        rows = numbers >= 0 if least is None else (numbers >= 0) & (confidence >= least)
        for column, values in zip(columns, (images, numbers, confidence >= (least or 1.0))):
            column.frombytes(values[rows].astype(column.typecode).tobytes())
    if not seen:
        raise DataError(f"{path}: has no labels, nothing after its header; fetch it again")
    images, numbers, positive = (np.frombuffer(column, column.typecode) for column in columns)
    if (images[1:] < images[:-1]).any():            # the published files are sorted
        order = np.argsort(images, kind="stable")
        images, numbers, positive = images[order], numbers[order], positive[order]
    images, counts = np.unique(images, return_counts=True)
    return Labels(images, _starts(counts), numbers, positive.view(bool))


def _starts(counts: np.ndarray) -> np.ndarray:
    """The starts of runs of these lengths, and the end of the last: (m + 1,) int64."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _parse(path: Path, first: int, text: bytes, kind: str,
           classes: Mapping[bytes, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each line's image (uint64), class or -1 (int32) and confidence (float64), of whole lines from this number on."""
    def refuse(line: int, why: str) -> None:
        raise DataError(f"{path}: line {first + line}: {_quote(text.split(NEWLINE)[line])}: {why}")

    found = LINES[kind].findall(text)
    if len(found) < text.count(NEWLINE):
        wrong, line = next((at, line) for at, line in enumerate(text.split(NEWLINE)) if not LINES[kind].fullmatch(line))
        fields = line.split(b",")
        if len(fields) != len(FIELDS[kind]):
            refuse(wrong, f"has not the four fields {HEADER.decode()}")
        refuse(wrong, next(why for field, (pattern, why) in zip(fields, FIELDS[kind])
                           if not re.fullmatch(pattern, field)))
    images, names, confidence = zip(*found)
    numbers = [classes.get(name) for name in names]
    if None in numbers:
        refuse(numbers.index(None), "the label name is not one of class-descriptions.csv")
    return (np.frombuffer(bytes.fromhex(b"".join(images).decode()), ">u8").astype(np.uint64),
            np.array(numbers, np.int32), np.array(confidence).astype(float))


def _quote(text: bytes) -> str:
    more = "..." if len(text) > 80 else ""
    return f"'{repr(text[:80])[2:-1]}{more}'"


def _chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in chunks of whole lines, each with its first line number; DataError if it ends within a line."""
    rest, line = b"", 1
    with opened(path) as (_, file):
        while piece := file.read(CHUNK):
            whole, newline, rest = (rest + piece).rpartition(NEWLINE)
            if not newline and len(rest) > CHUNK:
                raise DataError(f"{path}: line {line} does not end within {CHUNK} bytes; it is not a text file")
            if whole or newline:
                text = (whole + newline).replace(b"\r\n", NEWLINE)
                yield line, text
                line += text.count(NEWLINE)
    if rest:
        raise DataError(f"{path}: line {line}: {_quote(rest)}: the file ends within a line; it is truncated, fetch it "
                        "again (or, if it is whole, end its last line)")
    if line == 1:
        raise DataError(f"{path}: is empty; fetch it again")


def find_images(folder: Path, part: str) -> Images:
    """The image files of a part: in its folder, in folders below it, or in train_0, train_1, ... beside it."""
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
