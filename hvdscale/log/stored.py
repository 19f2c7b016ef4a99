"""A dataset of a log's file, looked at once: HDF5 takes microseconds for each question, and a log has forty columns."""
from __future__ import annotations

import os

import h5py
import numpy as np

from ..errors import LogError
from .files import refuse_odd_storage

# as HDF5 has the types of most columns: h5py takes longer to make one of the other
MEMORY = {np.dtype("<i8"): h5py.h5t.STD_I64LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}


class Stored:
    """The dataset ``name`` of an open file; KeyError where there is none. Its links are followed (see ``refuse_link``).

    offset        first byte of its values, where they lie in the file in one piece; else None
    descriptor    of the open file, where its bytes may be read as they are; see ``descriptor_of``
    """

    __slots__ = ("path", "name", "id", "shape", "dtype", "offset", "_descriptor")

    def __init__(self, path: str, file: h5py.File, name: str, descriptor: int | None = None) -> None:
        self.path, self.name = path, f"/{name}"
        self.id = h5py.h5d.open(file.id, name.encode("utf-8", "surrogateescape"))
        self.offset, self._descriptor = self.id.get_offset(), descriptor
        self.shape, self.dtype = self.id.shape, self.id.dtype
        if self.offset is None or descriptor is None:
            refuse_odd_storage(path, self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, stop, _ = rows.indices(len(self))
        values = np.empty((max(0, stop - first), *self.shape[1:]), self.dtype)
        if self._descriptor is None or self.offset is None or stop <= first:
            if stop - first < len(self) or self.dtype not in MEMORY:
                return h5py.Dataset(self.id)[first:stop]
            self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, MEMORY[self.dtype])
            return values
        buffer, done = values.data.cast("B"), 0
        start = self.offset + first * (values.nbytes // len(values))
        while done < len(buffer):
            got = os.preadv(self._descriptor, [buffer[done:]], start + done)
            if not got:
                raise LogError(f"{self.path}: {self.name} ends at byte {start + done:,}, where the file does; "
                               f"'hvdscale-log repair {self.path}' saves what is left")
            done += got
        return values


def descriptor_of(file: h5py.File) -> int | None:
    """The open file's descriptor where HDF5 reads the file itself; None of one that is being written."""
    return file.id.get_vfd_handle() if file.driver == "sec2" else None
