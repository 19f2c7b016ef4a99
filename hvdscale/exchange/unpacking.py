"""Decompress a file in a separate thread, ahead of its reader.

    with unpacked(open("batch_science_data.tar.bz2", "rb")) as file:        bzip2, gzip, xz, or uncompressed
        file.read(512)
"""
from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import zlib
from collections.abc import Iterator
from functools import partial
from queue import Empty, Queue
from threading import Thread

CHUNK, AHEAD = 1 << 18, 16              # compressed bytes of a chunk, and the number of chunks ahead
MOST = 32 * CHUNK                       # uncompressed bytes of a chunk, as zeros compress a million times
# first bytes of a compressed file -> its decompressor
COMPRESSED = {b"BZh": bz2.BZ2Decompressor, b"\x1f\x8b": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
              b"\xfd7zXZ\0": lzma.LZMADecompressor}


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """The file's uncompressed bytes; reading raises errors of the decompression, such as EOFError."""
    magic = next((magic for magic in COMPRESSED if file.peek(6).startswith(magic)), b"")
    return io.BufferedReader(_Ahead(_chunks(file, magic)), CHUNK)


def _chunks(file, magic) -> Iterator[bytes]:
    """Decompress in large chunks: switching threads in between may take a while."""
    unpacker = COMPRESSED[magic]() if magic else None
    while data := file.read(CHUNK):
        while unpacker and data:
            if unpacker.eof and data[:len(magic)] != magic[:len(data)]:
                return                                      # padding of the last block of a tape
            unpacker = COMPRESSED[magic]() if unpacker.eof else unpacker         # the next of several streams
            yield unpacker.decompress(data, MOST)
            while rest := _take_rest(unpacker):
                yield rest
            data = unpacker.unused_data
        yield data
    if unpacker and not unpacker.eof:
        raise EOFError("it ends before its compressed data do")


def _take_rest(unpacker) -> bytes:
    """The next MOST bytes that the decompressor holds back; none if it needs more input or is at its end."""
    if unpacker.eof:
        return b""
    if hasattr(unpacker, "unconsumed_tail"):                # zlib's
        return unpacker.decompress(unpacker.unconsumed_tail, MOST)
    return b"" if unpacker.needs_input else unpacker.decompress(b"", MOST)


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
