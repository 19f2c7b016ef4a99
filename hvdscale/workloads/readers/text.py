"""Text files, a chunk of whole lines at a time: plain, gzip or xz, told by their first bytes; UTF-8.

    for chunk in Text(Path("train.txt")).chunks(): chunk.lines
    train, val, test = cut_in_order(Path("input.txt"))          parts of one file
"""
from __future__ import annotations

import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...errors import DataError
from .files import GZIP, XZ

CHUNK = 2**20               # bytes read at once; a longer line comes in pieces
BYTE_ORDER_MARK = "\ufeff"
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 2**23         # of one file's bytes, for validation and for testing each


class Chunk(NamedTuple):
    """Whole lines without their ends, and how many bytes of the file on the disk were read for them."""

    lines: list[str]
    read: int


@dataclass(frozen=True)
class Text:
    """A text file, or the part of it between two bytes of its (uncompressed) content, which begin lines; stop None: to
    its end."""

    path: Path
    start: int = 0
    stop: int | None = None

    def chunks(self) -> Iterator[Chunk]:
        """The lines in order, about CHUNK bytes of them at a time.

        A line ends in LF or CR LF. One of more than CHUNK bytes comes as several, cut at its last space there. Raises
        DataError naming the file, and the line where there is one, for what cannot be read, is not UTF-8, holds NUL
        bytes or nothing at all.
        """
        with _reading(self.path) as (raw, file):
            _skip(file, self.start)
            at, tail, seen = self.start, b"", raw.tell()
            left = None if self.stop is None else self.stop - self.start
            while True:
                block = file.read(CHUNK if left is None else min(CHUNK, left))
                left = None if left is None else left - len(block)
                data = tail + block
                cut = _whole_lines(data) if block else len(data)
                if cut:
                    lines = self._decoded(data[:cut], at)
                    yield Chunk(lines, raw.tell() - seen)
                    seen = raw.tell()
                at, tail = at + cut, data[cut:]
                if not block:
                    break
        if self.stop is None and at == 0:
            raise DataError(f"{self.path}: is empty; it should hold text, a line or more")

    @property
    def stored_bytes(self) -> int:
        """About how many bytes on the disk ``chunks`` reads."""
        with _reading(self.path) as (raw, file):
            size = os.fstat(raw.fileno()).st_size
        if raw is not file:
            return size
        return (size if self.stop is None else self.stop) - self.start

    def _decoded(self, data: bytes, at: int) -> list[str]:
        """The lines in the data, which stands at this byte of the file."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self._line(at + error.start)} is not UTF-8: it holds byte 0x{data[error.start]:02x} "
                            f"where none such can stand; convert the file (iconv -f ENCODING -t utf-8)") from None
        if "\0" in text:
            raise DataError(f"{self._line(at + data.index(0))} holds a NUL byte, which no text does; it is another "
                            "kind of file, or damaged")
        lines = (text.removeprefix(BYTE_ORDER_MARK) if at == 0 else text).split("\n")
        if lines[-1] == "":
            lines.pop()
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def _line(self, at: int) -> str:
        """``FILE: line 12``, the line that holds this byte."""
        line = 1
        with _reading(self.path) as (_, file):
            while at > 0:
                block = file.read(min(CHUNK, at))
                if not block:
                    break
                line, at = line + block.count(b"\n"), at - len(block)
        return f"{self.path}: line {line}"


def cut_in_order(path: Path, *shares: float) -> list[Text]:
    """The file as parts that follow each other, cut at the ends of lines: all but the last of these shares of its
    bytes, then a part for each of them.

    By default its training, validation and test parts: the last two have 5 % each, and no more than 8 MiB.
    """
    size = _size(path)
    held_out = [int(size * share) for share in shares] or [min(int(size * HELD_OUT_SHARE), HELD_OUT_MOST)] * 2
    bounds, at = [], size
    for part in reversed(held_out):
        at -= part
        bounds.append(_line_start(path, at))
    bounds = [0, *reversed(bounds), size]
    return [Text(path, a, b) for a, b in zip(bounds, bounds[1:])]


def _whole_lines(data: bytes) -> int:
    """Bytes of the data up to the end of its last whole line; of a line too long, to its last space or character."""
    cut = data.rfind(b"\n") + 1
    if cut or len(data) < CHUNK:
        return cut
    cut = data.rfind(b" ") + 1
    if cut:
        return cut
    cut = len(data) - 4
    while data[cut] & 0xC0 == 0x80 and cut > len(data) - 8:        # inside a character
        cut -= 1
    return cut


def _line_start(path: Path, at: int) -> int:
    """The first byte at or after this one that begins a line; in a line without near end, that follows a space
    or, where none is near, a character."""
    if at <= 0:
        return 0
    with _reading(path) as (_, file):
        _skip(file, at - 1)
        data = file.read(CHUNK)
    end = data.find(b"\n")
    if end < 0 and len(data) == CHUNK:
        end = data.find(b" ")
        if end < 0:
            return at - 1 + _whole_lines(data)
    return at + end if end >= 0 else at - 1 + len(data)


def _size(path: Path) -> int:
    """Bytes of the file's uncompressed content."""
    with _reading(path) as (raw, file):
        return _skip(file, None) if raw is not file else os.fstat(raw.fileno()).st_size


def _skip(file: BinaryIO, wanted: int | None) -> int:
    """Go to this byte, None: to the end; gives where that is."""
    if wanted is not None and not isinstance(file, (gzip.GzipFile, lzma.LZMAFile)):
        return file.seek(wanted)
    at = 0
    while wanted is None or at < wanted:
        block = file.read(CHUNK if wanted is None else min(CHUNK, wanted - at))
        if not block:
            break
        at += len(block)
    return at


@contextmanager
def _reading(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file as it lies on the disk, and its uncompressed content; what goes wrong is a DataError that names it."""
    try:
        with open(path, "rb") as raw:
            magic = raw.read(len(XZ))
            raw.seek(0)
            if magic.startswith(GZIP):
                yield raw, gzip.GzipFile(fileobj=raw)
            elif magic == XZ:
                yield raw, lzma.LZMAFile(raw)
            else:
                yield raw, raw
    except OSError as error:
        if error.strerror is None:
            raise _damaged(path, error) from None
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: its compressed data ends early or is damaged ({error}); fetch it again")
