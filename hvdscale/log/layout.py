"""A dataset of a log's file, looked at once as HDF5 takes long for each question, and whether it is laid out as the
schema says, so that what is read is what was meant, and claims no more than the file can hold.
"""
from __future__ import annotations

import math
import os

import h5py
import numpy as np

from ..errors import LogError
from .files import refuse_odd_storage
from .schema import LogColumn, known_column

KINDS = {"int": "iu", "float": "f", "status": "iu", "text": "iu"}
DENSEST = 1100              # bytes that one byte of gzip may expand to (1,032), and some more
SMALL_BYTES = 1 << 20       # columns up to this size are not held against their file's
SMALL_ROWS, ROW_BYTES = 1 << 20, 2      # a row takes at least so many bytes of the file, in a table of more rows
# as HDF5 has the types of most columns: h5py takes longer to make one of the other
MEMORY = {np.dtype("<i8"): h5py.h5t.STD_I64LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}


class Stored:
    """The dataset ``name`` of an open file; KeyError where there is none. Its links are followed (see ``refuse_link``).

    offset        first byte of its values, where they lie in the file in one piece; else None
    descriptor    of the open file, where its bytes may be read as they are: not of one that is being written
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


def refuse_wrong_layout(path: str, table: str, found: LogColumn, dataset: Stored, rows: int, there: int) -> int:
    """LogError where a column holds what does not belong there or says another unit than the schema's, and where there
    is less in the file, of ``there`` bytes, than the rows it claims; else the bytes of the rows."""
    what, wanted = f"{table}/{found.name}", known_column(table, found.name)
    refuse_wrong_type(path, what, dataset, found.type)
    if wanted and found.type != wanted.type:
        raise LogError(f"{path}: {what} holds {found.type} entries ({dataset.dtype}) where {wanted.type} belongs")
    if wanted and found.unit and found.unit != wanted.unit:
        raise LogError(f"{path}: {what} is in {found.unit} where {wanted.unit} belongs; units are not converted, as "
                       "nothing says that the rest of the log is in them")
    size = refuse_hollow(path, what, dataset, rows, there)
    if size < rows * dataset.dtype.itemsize * (1 + (found.type == "text")):
        raise LogError(f"{path}: {what} has {len(dataset)} rows where {rows} were committed; "
                       f"'hvdscale-log repair {path}' saves what is left")
    return size


def refuse_wrong_type(path: str, what: str, dataset: h5py.Dataset | Stored, kind: str) -> None:
    shape, of_row = dataset.shape, (2,) if kind == "text" else ()
    if dataset.dtype.kind not in KINDS[kind] or not shape or shape[1:] != of_row:
        raise LogError(f"{path}: {what} holds {dataset.dtype} entries in the shape {shape}, as no column of a log does")


def refuse_hollow(path: str, what: str, dataset: h5py.Dataset | Stored, rows: int, there: int) -> int:
    """LogError where a column claims more rows than its bytes in the file can expand to, or, but for the texts, than a
    file of this size has: reading it would take memory out of all proportion. Else the bytes of the rows that it has.

    there   bytes of the file
    """
    shape = dataset.shape
    rows = min(rows, shape[0])
    size = rows * dataset.dtype.itemsize * math.prod(shape[1:])
    if size <= SMALL_BYTES:
        return size
    stored = min(dataset.id.get_storage_size(), there)
    if size > DENSEST * stored:
        raise LogError(f"{path}: {what} claims {rows:,} rows, but has {stored:,} bytes in the file; "
                       f"'hvdscale-log repair {path}' saves what there is")
    if rows > SMALL_ROWS and rows * ROW_BYTES > there and what != "text":
        raise LogError(f"{path}: {what} claims {rows:,} rows, but the file has {there:,} bytes; a row takes "
                       f"{ROW_BYTES} or more")
    return size


def as_column(kind: str, values: np.ndarray) -> np.ndarray:
    """Values in the type that every reader counts on: int64, float64 or int8; the same array where they are so."""
    if kind == "status":
        return values.astype(np.int8, copy=False)
    return values.astype(np.float64 if kind == "float" else np.int64, copy=False)
