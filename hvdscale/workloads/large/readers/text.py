"""UTF-8 text files, read in chunks of whole lines; gzip and xz are recognised by their first bytes.

    for lines, read_bytes in Text(Path("train.txt")).chunks(): ...
    train, val, test = cut_in_order(Path("input.txt"))          parts of one file
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....errors import DataError
from ...files import opened

CHUNK = 2**20               # bytes read at once; longer lines are split
BYTE_ORDER_MARK = "\ufeff"
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 2**23         # of a single file's bytes, each for validation and testing


@dataclass(frozen=True)
class Text:
    """A text file, or its part from byte ``start`` to ``stop`` of the uncompressed content, both at line starts."""

    path: Path
    start: int = 0
    stop: int | None = None

    def chunks(self) -> Iterator[tuple[list[str], int]]:
        """The lines in order, without their ends, LF or CR LF: about CHUNK bytes at a time, each with the number of
        bytes read from disk for it; longer lines are split at a space. Raises DataError naming the file, and the line
        if known, for text that is not UTF-8, has NUL bytes or is empty."""
        with opened(self.path) as (raw, file):
            file.seek(self.start)
            at, tail, seen = self.start, b"", raw.tell()
            left = None if self.stop is None else self.stop - self.start
            while True:
                block = file.read(CHUNK if left is None else min(CHUNK, left))
                left = None if left is None else left - len(block)
                data = tail + block
                cut = _whole_lines(data) if block else len(data)
                if cut:
                    yield self._decoded(data[:cut], at), raw.tell() - seen
                    seen = raw.tell()
                at, tail = at + cut, data[cut:]
                if not block:
                    break
        if self.stop is None and at == 0:
            raise DataError(f"{self.path}: is empty; it should hold text, a line or more")

    @property
    def stored_bytes(self) -> int:
        """Approximate number of bytes that ``chunks`` reads from disk."""
        with opened(self.path) as (raw, file):
            size = os.fstat(raw.fileno()).st_size
        if raw is not file:
            return size
        return (size if self.stop is None else self.stop) - self.start

    def _decoded(self, data: bytes, at: int) -> list[str]:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self._line(at + error.start)} is not UTF-8: it holds byte 0x{data[error.start]:02x} "
                            f"which is invalid there; convert the file (iconv -f ENCODING -t utf-8)") from None
        if "\0" in text:
            raise DataError(f"{self._line(at + data.index(0))} holds a NUL byte, which no text does; it is another "
                            "kind of file, or damaged")
        lines = (text.removeprefix(BYTE_ORDER_MARK) if at == 0 else text).split("\n")
        if lines[-1] == "":
            lines.pop()
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def _line(self, at: int) -> str:
        line = 1
        with opened(self.path) as (_, file):
            while at > 0:
                block = file.read(min(CHUNK, at))
                if not block:
                    break
                line, at = line + block.count(b"\n"), at - len(block)
        return f"{self.path}: line {line}"


def cut_in_order(path: Path, *shares: float) -> list[Text]:
    """Consecutive parts of the file, cut at line ends: the first, then one for each of these shares of its bytes."""
    with opened(path) as (_, file):
        size = file.seek(0, os.SEEK_END)            # of the uncompressed content
    held_out = [int(size * share) for share in shares] or [min(int(size * HELD_OUT_SHARE), HELD_OUT_MOST)] * 2
    bounds = [0, *(_line_start(path, size - sum(held_out[part:])) for part in range(len(held_out))), size]
    return [Text(path, a, b) for a, b in zip(bounds, bounds[1:])]


def _whole_lines(data: bytes) -> int:
    """Length of the data up to its last line end; without one, up to the last space or whole character."""
    cut = data.rfind(b"\n") + 1
    if cut or len(data) < CHUNK:
        return cut
    if cut := data.rfind(b" ") + 1:
        return cut
    cut = len(data) - 4
    while data[cut] & 0xC0 == 0x80 and cut > len(data) - 8:        # inside a multi-byte character
        cut -= 1
    return cut


def _line_start(path: Path, at: int) -> int:
    """The first line start at or after this byte; in a very long line, the next space or character boundary."""
    if at <= 0:
        return 0
    with opened(path) as (_, file):
        file.seek(at - 1)
        data = file.read(CHUNK)
    end = data.find(b"\n")
    if end < 0 and len(data) == CHUNK:
        end = data.find(b" ")
        if end < 0:
            return at - 1 + _whole_lines(data)
    return at + end if end >= 0 else at - 1 + len(data)
