"""Decompress a file in a separate thread, a chunk ahead of its reader.

    with unpacked(open("batch_science_data.tar.bz2", "rb")) as file:        bzip2, gzip, xz, or uncompressed
        file.read(512)
"""
from __future__ import annotations

import bz2
import gzip
import io
import lzma
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CHUNK = 1 << 20                         # bytes
PADDING = 512                           # bytes
COMPRESSED = {b"BZh": bz2.open, b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open}      # by a file's first bytes


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """The file's uncompressed bytes; reading raises errors of the decompression, such as EOFError."""
    return io.BufferedReader(_Unpacked(file), CHUNK)


class _Unpacked(io.RawIOBase):
    def __init__(self, file: io.BufferedReader):
        opened: Any = next((opened for magic, opened in COMPRESSED.items() if file.peek(6).startswith(magic)), None)
        self._file, self._source = file, opened(file) if opened else file
        self._thread, self._left = ThreadPoolExecutor(1), memoryview(b"")
        self._ahead = self._thread.submit(self._chunk)

    def _chunk(self) -> bytes:
        try:
            return self._source.read1(CHUNK)
        except EOFError:
            self._file.seek(-PADDING, io.SEEK_END)
            if any(self._file.read(PADDING)):           # else the padding of a tape's last block
                raise
            return b""

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self._left:
            self._left = memoryview(self._ahead.result())
            self._ahead = self._thread.submit(self._chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self):
        super().close()
        self._thread.shutdown()
