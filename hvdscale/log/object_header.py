"""What the header of a dataset says, from its bytes: each of HDF5's answers takes ten times as long.

    header = header_at(descriptor, address)        of a dataset that HDF5 has opened, so that its checksum is right
    header.shape, header.type, header.texts        None for any header that is not as logs are written

HDF5 file format specification, version 3.0, IV.A.1.b (version 2 of the object header) and IV.A.2 (its messages).
"""
from __future__ import annotations

import functools
import os
import struct
from typing import NamedTuple

MOST = 1024                     # bytes that are looked at; a column's header has 300
SIGNATURE, VERSION = b"OHDR", 2
TIMES, PHASES, ORDERED, WIDTH = 0x20, 0x10, 0x04, 0x03      # flags of a header: optional parts, bytes of its size
SHARED = 0x02                   # flag of a message that lies elsewhere
DATASPACE, DATATYPE, ATTRIBUTE, CONTINUED = 1, 3, 12, 16
SIMPLE, SCALAR = (2, 1), (2, 0, 0, 0)                       # dataspaces: version, (rank, flags,) type
FIXED_TEXT = 0x13               # version and class of a datatype: text of fixed size


class Header(NamedTuple):
    """A dataset's shape, the bytes of its datatype, and its attributes that are one short text each."""

    shape: tuple[int, ...]
    type: bytes
    texts: dict[str, str]


def header_at(descriptor: int, address: int) -> Header | None:
    """The header at a byte of an open file; None where it is of another layout, or not whole."""
    try:
        return _parsed(os.pread(descriptor, MOST, address))
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
            shape = _shape(body)
        elif message == DATATYPE:
            kind = body
        elif message == ATTRIBUTE and (found := _text(body)):
            texts[found[0]] = found[1]
    return Header(shape, kind, texts) if shape and kind else None


def _shape(body: bytes) -> tuple[int, ...] | None:
    version, rank, _, what = body[:4]
    return struct.unpack_from(f"<{rank}Q", body, 4) if (version, what) == SIMPLE else None


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
