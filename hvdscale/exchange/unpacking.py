"""Decompress a file in a separate thread, ahead of its reader.

    with unpacked(open("batch_science_data.tar.bz2", "rb")) as file:        bzip2, gzip, xz, or uncompressed
        file.read(512)
"""
from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
from collections.abc import Iterator
from functools import partial
from queue import Empty, Queue
from threading import Thread
from typing import Any

CHUNK, AHEAD = 1 << 20, 8               # bytes of a chunk, and the number of chunks ahead
PADDING = 512                           # bytes
COMPRESSED = {b"BZh": bz2.open, b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open}      # by a file's first bytes


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """The file's uncompressed bytes; reading raises errors of the decompression, such as EOFError."""
    opened: Any = next((opened for magic, opened in COMPRESSED.items() if file.peek(6).startswith(magic)), None)
    source = opened(file) if opened else file
    return io.BufferedReader(_Ahead(_chunks(file, source)), CHUNK)


def _chunks(file: io.BufferedReader, source: Any) -> Iterator[bytes]:
    try:
        yield from iter(partial(source.read1, CHUNK), b"")
    except EOFError:
        file.seek(-PADDING, io.SEEK_END)
        if any(file.read(PADDING)):             # else the padding of a tape's last block, in which no stream begins
            raise


class _Ahead(io.RawIOBase):
    """Takes chunks in a thread, ahead of its reader."""

    def __init__(self, source: Iterator[bytes]):
        self._source, self._left, self._end = source, memoryview(b""), None
        self._chunks: Queue = Queue(AHEAD)
        self._thread = Thread(target=self._fill, daemon=True)
        self._thread.start()

    def _fill(self):
        try:
            for chunk in self._source:
                if self.closed:
                    return
                if chunk:
                    self._chunks.put(chunk)
            self._chunks.put(b"")
        except Exception as error:      # of the file or its format: raised again by readinto
            self._chunks.put(error)

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._left and self._end is None:
            chunk = self._chunks.get()
            if isinstance(chunk, Exception):
                self._end = chunk
            else:
                self._left, self._end = memoryview(chunk), None if chunk else b""
        if not self._left and self._end:
            raise self._end
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self):
        super().close()
        while self._thread.is_alive():
            with contextlib.suppress(Empty):
                self._chunks.get(timeout=0.1)
