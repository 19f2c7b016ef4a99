"""A dataset of a log's file, looked at once: a log has forty columns, and each of HDF5's answers takes ten times as
long as reading the bytes of a header.

HDF5 file format specification, version 3.0, IV.A.1.b (version 2 of the object header) and IV.A.2 (its messages).
"""
from __future__ import annotations

import functools
import os
import struct
from typing import NamedTuple

import h5py
import numpy as np

from ..errors import LogError
from .files import refuse_odd_storage

# as HDF5 has the types of most columns: h5py takes longer to make one of the other
MEMORY = {np.dtype("<i8"): h5py.h5t.STD_I64LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}
MOST_TYPES = 64
MOST_HEADER = 1024                  # bytes that are looked at; a column's header has 300
SIGNATURE, VERSION = b"OHDR", 2
TIMES, PHASES, ORDERED, WIDTH = 0x20, 0x10, 0x04, 0x03      # flags of a header: optional parts, bytes of its size
SHARED = 0x02                   # flag of a message that lies elsewhere
DATASPACE, DATATYPE, ATTRIBUTE, CONTINUED = 1, 3, 12, 16
SIMPLE, SCALAR = (2, 1), (2, 0, 0, 0)                       # dataspaces: version, (rank, flags,) type
FIXED_TEXT = 0x13               # version and class of a datatype: text of fixed size
_types: dict[bytes, np.dtype] = {}          # by the bytes of a datatype in a file


class Stored:
    """The dataset ``name`` of an open file; KeyError where there is none. Its links are followed (see ``refuse_link``).

    offset    first byte of its values, where they lie in the file in one piece; else None
    texts     attributes that are known without asking HDF5
    """

    __slots__ = ("path", "name", "id", "shape", "dtype", "offset", "texts", "_descriptor")

    def __init__(self, path: str, file: h5py.File, name: str, descriptor: int | None = None, address: int | None = None
                 ) -> None:
        """``descriptor`` of the open file, where its bytes may be read as they are; ``address``: of the header's first
        byte, where that is known; see ``descriptor_of`` and ``datasets_in``."""
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


class Header(NamedTuple):
    """A dataset's shape, the bytes of its datatype, and its attributes that are one short text each."""

    shape: tuple[int, ...]
    type: bytes
    texts: dict[str, str]


def header_at(descriptor: int, address: int) -> Header | None:
    """The header at a byte of an open file; None where it is of another layout, or not whole."""
    try:
        return _parsed(os.pread(descriptor, MOST_HEADER, address))
    except (OSError, IndexError, struct.error, UnicodeDecodeError):
        return None


def _parsed(data: bytes) -> Header | None:
    if data[:4] != SIGNATURE or data[4] != VERSION:
        return None
    flags = data[5]
    at = 6 + 16 * bool(flags & TIMES) + 4 * bool(flags & PHASES)
    width, step = 1 << (flags & WIDTH), 4 + 2 * bool(flags & ORDERED)
    end = at + width + int.from_bytes(data[at:at + width], "little")
    at += width
    if end > len(data):
        return None
    shape, kind, texts = None, b"", {}
    while at + step <= end:
        message, size, how = data[at], data[at + 1] | data[at + 2] << 8, data[at + 3]
        body = data[at + step:at + step + size]
        at += step + size
        if how & SHARED or message == CONTINUED:
            return None
        if message == DATASPACE:
            version, rank, _, what = body[:4]
            shape = struct.unpack_from(f"<{rank}Q", body, 4) if (version, what) == SIMPLE else None
        elif message == DATATYPE:
            kind = body
        elif message == ATTRIBUTE and (found := _text(body)):
            texts[found[0]] = found[1]
    return Header(shape, kind, texts) if shape and kind else None


@functools.lru_cache(maxsize=1024)              # logs have the same units and meanings
def _text(body: bytes) -> tuple[str, str] | None:
    """Name and value of an attribute that is one text of fixed size; None of any other."""
    version, _, name_size, type_size, space_size, _ = struct.unpack_from("<BBHHHB", body)
    kind = 9 + name_size
    space = kind + type_size
    value = body[space + space_size:]
    if version != 3 or body[kind] != FIXED_TEXT or tuple(body[space:space + 4]) != SCALAR:
        return None
    if len(value) != int.from_bytes(body[kind + 4:kind + 8], "little"):
        return None
    return body[9:kind].rstrip(b"\0").decode(), value.rstrip(b"\0").decode("utf-8", "replace")
