"""A dataset of a log's file, looked at once: HDF5 takes microseconds for each question, and a log has forty columns.

    column = Stored(path, file, "steps/loss")       LogError where it lies in another file than the log's own
    column.shape, column.dtype, len(column)         as of an h5py.Dataset
    column[:100]                                    rows; those that lie in one piece past HDF5's slower way
"""
from __future__ import annotations

import os

import h5py
import numpy as np

from ..errors import LogError
from .files import refuse_odd_storage


class Stored:
    """The dataset ``name`` of an open file; KeyError where there is none. Its links are followed (see ``refuse_link``).

    offset    first byte of its values, where they lie in the file in one piece; else None
    """

    __slots__ = ("path", "name", "id", "shape", "dtype", "offset", "_descriptor")

    def __init__(self, path: str, file: h5py.File, name: str, descriptor: int | None = None) -> None:
        """descriptor    of the open file, where its bytes may be read as they are; see ``descriptor_of``"""
        self.path, self.name = path, f"/{name}"
        self.id = h5py.h5d.open(file.id, name.encode("utf-8", "surrogateescape"))
        self.shape, self.dtype = self.id.shape, self.id.dtype
        self.offset, self._descriptor = self.id.get_offset(), descriptor
        if self.offset is None or descriptor is None:
            refuse_odd_storage(path, self)

    @property
    def ndim(self) -> int:
        """1, or 2 of texts."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, stop, _ = rows.indices(len(self))
        if self._descriptor is None or self.offset is None or stop <= first:
            return h5py.Dataset(self.id)[first:stop]
        values = np.empty((stop - first, *self.shape[1:]), self.dtype)
        self._fill(values.data.cast("B"), self._descriptor, self.offset + first * (values.nbytes // len(values)))
        return values

    def _fill(self, buffer: memoryview, descriptor: int, start: int) -> None:
        done = 0
        while done < len(buffer):
            got = os.preadv(descriptor, [buffer[done:]], start + done)
            if not got:
                raise LogError(f"{self.path}: {self.name} ends at byte {start + done:,}, where the file does; "
                               f"'hvdscale-log repair {self.path}' saves what is left")
            done += got


def descriptor_of(file: h5py.File) -> int | None:
    """The open file's descriptor where HDF5 reads the file itself; None of one that is being written."""
    return file.id.get_vfd_handle() if file.driver == "sec2" else None
