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
from .object_header import header_at

# as HDF5 has the types of most columns: h5py takes longer to make one of the other
MEMORY = {np.dtype("<i8"): h5py.h5t.STD_I64LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}
MOST_TYPES = 64
_types: dict[bytes, np.dtype] = {}          # by the bytes of a datatype in a file


class Stored:
    """The dataset ``name`` of an open file; KeyError where there is none. Its links are followed (see ``refuse_link``).

    offset    first byte of its values, where they lie in the file in one piece; else None
    texts     attributes that are known without asking HDF5
    """

    __slots__ = ("path", "name", "id", "shape", "dtype", "offset", "texts", "_descriptor")

    def __init__(self, path: str, file: h5py.File, name: str, descriptor: int | None = None, address: int | None = None
                 ) -> None:
        """
        descriptor    of the open file, where its bytes may be read as they are; see ``descriptor_of``
        address       byte at which the dataset's header begins, where that is known; see ``datasets_in``
        """
        self.path, self.name = path, f"/{name}"
        self.id = h5py.h5d.open(file.id, name.encode("utf-8", "surrogateescape"))
        self.offset, self._descriptor = self.id.get_offset(), descriptor
        header = header_at(descriptor, address) if descriptor is not None and address is not None else None
        self.texts = header.texts if header else {}
        # HDF5 writes a column in pieces into an array unseen: of the shape that it says itself
        self.shape = header.shape if header and self.offset is not None else self.id.shape
        self.dtype = self._type(header.type) if header else self.id.dtype
        if self.offset is None or descriptor is None:
            refuse_odd_storage(path, self)

    @property
    def ndim(self) -> int:
        """The number of dimensions: 1, or 2 for texts."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, stop, _ = rows.indices(len(self))
        straight = self._descriptor is not None and self.offset is not None and stop > first
        if not straight and (stop - first < len(self) or self.dtype not in MEMORY):
            return h5py.Dataset(self.id)[first:stop]
        values = np.empty((stop - first, *self.shape[1:]), self.dtype)
        if not straight:
            self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, MEMORY[self.dtype])
            return values
        assert self._descriptor is not None and self.offset is not None
        self._fill(values.data.cast("B"), self._descriptor, self.offset + first * (values.nbytes // len(values)))
        return values

    def _type(self, written: bytes) -> np.dtype:
        if written not in _types:
            if len(_types) >= MOST_TYPES:
                _types.clear()
            _types[written] = self.id.dtype
        return _types[written]

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
