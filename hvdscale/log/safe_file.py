"""A file that HDF5 can always write to, whatever the disk says."""

import io
import os
from collections.abc import Callable
from typing import Any

from ..system.files import new_descriptor


class Positioned(io.RawIOBase):
    """A file with a place from which is read and an end, as HDF5 asks of one that is Python's."""

    def __init__(self, end: int = 0) -> None:
        super().__init__()
        self._at, self._end = 0, end

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        return self._at

    def _fill(self, buffer: Any, descriptor: int) -> memoryview:
        """What lies at the place, where the next read begins behind it; zeros beyond the end of the real file."""
        view = memoryview(buffer).cast("B")
        got = os.preadv(descriptor, [view], self._at)
        view[got:] = bytes(len(view) - got)
        self._at += len(view)
        return view


class SafeFile(Positioned):
    """A new file that HDF5 can always write to: ``error`` is set once the disk refused something.

    HDF5 crashes the process, later and for good, when it cannot write a file that is not in SWMR mode (seen: h5py 3.16
    on a full disk). So it is told that all went well: what follows the failure stays in memory, and is read from there,
    until HDF5 has closed the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.error: OSError | None = None
        self._descriptor = new_descriptor(path)
        self._kept: list[tuple[int, bytes]] = []

    def write(self, data: Any) -> int:
        view, at = memoryview(data).cast("B"), self._at
        self._at += len(view)
        self._end = max(self._end, self._at)
        rest = view
        while len(rest) and self.error is None:
            try:
                written = os.pwrite(self._descriptor, rest, self._at - len(rest))
            except OSError as error:
                self.error = error
            else:
                rest = rest[written:]
        if self.error is not None:
            self._kept.append((at, bytes(view)))
        return len(view)

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with what was written there; zeros where nothing was."""
        begin, view = self._at, self._fill(buffer, self._descriptor)
        for at, data in self._kept:
            first, last = max(at, begin), min(at + len(data), begin + len(view))
            if first < last:
                view[first - begin:last - begin] = data[first - at:last - at]
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._at if size is None else size
        self._try(os.ftruncate, self._descriptor, self._end)
        return self._end

    def sync(self) -> None:
        self._try(os.fsync, self._descriptor)

    def close(self) -> None:
        if not self.closed:
            self._try(os.close, self._descriptor)
        super().close()

    def _try(self, act: Callable[..., Any], *arguments: int) -> None:
        try:
            if self.error is None or act is os.close:
                act(*arguments)
        except OSError as error:
            self.error = self.error or error
