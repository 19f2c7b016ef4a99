"""One HDF5 file of a log: what each has when it is made, what is looked at when it is opened, and its datasets, which
must be laid out as the schema says, so that what is read is what was meant, and claim no more than the file can hold.

    with reading(path):                               any failure inside is a LogError that names the file
        file = open_file(path)
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np

from .. import __version__
from ..errors import HvdscaleError, LogError
from ..system.inputs import open_input
from ..system.outputs import Kind, refuse_foreign
from .safe_file import Positioned
from .schema import FORMAT, KNOWN, TABLES, VERSION, LogColumn, Status, known_column

NO_END = 1 << 60
BOUNDS = ("v110", "v110")                # the oldest file layout that has SWMR: HDF5 1.10 and later read it
STATUS_TYPE = h5py.enum_dtype({status.name: status.value for status in Status}, basetype="i1")
TYPES = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "text": np.dtype("<i8"), "status": STATUS_TYPE}
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LOG = Kind("a log", lambda head: head.startswith(SIGNATURE))
# signature, version, sizes, flags, base, extension, end of file, root group, checksum (HDF5 file format III, II.A)
SUPERBLOCK = struct.Struct("<8sBBBBQQQQI")
MOST_ATTRIBUTE, MOST_ATTRIBUTES = 1 << 20, 4 << 20      # bytes of one, and of all of a file; a log has a few thousand
MOST_CHUNK = 1 << 26                     # bytes of a piece of a column
WRITTEN = {"versions": dict, "changes": dict, "imported": dict, "merged": int}         # types of root attributes
NAMES = {"text", *(f"{table}/{name}" for table in TABLES for name in ("committed_rows", *KNOWN[table]))}
KINDS = {"int": "iu", "float": "f", "status": "iu", "text": "iu"}
DENSEST = 1100              # bytes that one byte of gzip may expand to (1,032), and some more
SMALL_BYTES = 1 << 20       # columns up to this size are not held against their file's
SMALL_ROWS, ROW_BYTES = 1 << 20, 2      # a row takes at least so many bytes of the file, in a table of more rows
# as HDF5 has the types of most columns: h5py takes longer to make one of the other
MEMORY = {np.dtype("<i8"): h5py.h5t.STD_I64LE, np.dtype("<f8"): h5py.h5t.IEEE_F64LE}
NUMBERS = (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM)


class Superblock(NamedTuple):
    """What a file's first bytes say: flags of its state, the end of file that HDF5 counts on, and its real size."""

    flags: int
    end: int
    size: int

    @property
    def cut(self) -> str:
        """Where a closed file was cut off, in words; "" where it was not."""
        if self.flags or self.size >= self.end:
            return ""
        return f"is cut off at byte {self.size:,} of {self.end:,}; copy it again"


def write_root_attributes(file: h5py.File, attributes: Mapping[str, Any]) -> None:
    """The root attributes of every log; ``attributes`` are added to them or replace them."""
    given = {
        "format": FORMAT, "version": VERSION, "creator": f"hvdscale {__version__}", "host": platform.node(),
        **attributes,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "h5py": h5py.__version__,
                     "hdf5": h5py.version.hdf5_version, **attributes.get("versions", {})},
    }
    for name, value in given.items():
        write_attribute(file, name, value)


class ForeignFile(LogError):
    """An HDF5 file that is not a log."""


def refuse_taken(path: str, overwrite: bool = True) -> None:
    """LogError where no log may be written: something is there that is not to be overwritten, or is not a log. What is
    damaged beyond reading counts as one."""
    if not overwrite and os.path.lexists(path):
        raise LogError(f"{path}: exists already; choose another name, or --overwrite it")
    refuse_foreign(path, LOG, LogError)
    try:
        open_file(path).close()
    except ForeignFile:
        raise
    except (LogError, FileNotFoundError):
        pass


def make_directory(path: str) -> None:
    """Makes the directory that a log is to lie in; LogError where it cannot be made."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as error:
        raise LogError(f"{path}: its directory cannot be made: {error.strerror}") from error


def write_attribute(where: h5py.HLObject, name: str, value: Any) -> None:
    """An attribute: integers and floats as they are, text as fixed-size UTF-8, all else as JSON text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        where.attrs[name] = value
        return
    text = value if isinstance(value, str) else json.dumps(value)
    data = text.encode("utf-8", "replace")
    where.attrs.create(name, np.array(data), dtype=h5py.string_dtype("utf-8", max(len(data), 1)))


def attribute_of(where: h5py.HLObject, name: str) -> Any:
    """An attribute as it was written: int, float, str, or the dict or list that is stored as JSON. None where there is
    none, or one that no log has: of another type, or of more than MOST_ATTRIBUTE bytes."""
    try:
        found = h5py.h5a.open(where.id, name.encode("utf-8", "surrogateescape"))
    except KeyError:
        return None
    kind, size = found.get_type(), found.get_storage_size()
    if size > MOST_ATTRIBUTE:
        return None
    if size == 8 and kind.equal(h5py.h5t.STD_I64LE) and found.shape == ():      # past h5py's slower way
        number = np.empty((), "<i8")
        found.read(number, mtype=kind)
        return number.item()
    if not isinstance(kind, h5py.h5t.TypeStringID):
        value = h5py.AttributeManager(where)[name] if kind.get_class() in NUMBERS else None
        return value.item() if isinstance(value, np.generic) else value
    if not kind.is_variable_str() and size == kind.get_size():      # as they are written: past h5py's slower way
        written = np.empty((), f"S{size}")
        found.read(written, mtype=kind)
        value = written.item()
    else:
        value = h5py.AttributeManager(where)[name] if found.get_space().get_simple_extent_npoints() == 1 else ""
        if not isinstance(value, (str, bytes)) or not 0 < len(value) <= MOST_ATTRIBUTE:
            return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if text[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text


def root_attributes(path: str, file: h5py.File) -> dict[str, Any]:
    """The attributes of a log's file but those of another type than they are written with; arrays as text. LogError
    where they are more than a log has."""
    found, size = {}, 0
    for name in file.attrs:
        value = attribute_of(file, name)
        size += len(str(value))
        if size > MOST_ATTRIBUTES:
            raise LogError(f"{path}: its attributes have over {MOST_ATTRIBUTES >> 20} MiB, as no log's have")
        if value is not None and isinstance(value, WRITTEN.get(name, object)):
            found[name] = str(value) if isinstance(value, np.ndarray) else value
    return found


def create_column(group: h5py.Group, column: LogColumn, rows: int, **layout: Any) -> h5py.Dataset:
    """The dataset of a column, with its unit and meaning; ``layout`` are the arguments of h5py's create_dataset."""
    of_row = (2,) if column.type == "text" else ()
    layout |= {name: (*layout[name], *of_row) for name in ("chunks", "maxshape") if name in layout}
    dataset = group.create_dataset(column.name, shape=(rows, *of_row), dtype=TYPES[column.type], **layout)
    for name, value in (("unit", column.unit), ("meaning", column.meaning), ("better", column.better)):
        if value:
            write_attribute(dataset, name, value)
    return dataset


class reading(contextlib.AbstractContextManager["reading"]):
    """Turns what goes wrong while HDF5 reads ``path`` into a LogError; FileNotFoundError stays, for who retries, and
    what is raised on purpose, such as by a signal. A class, as each column of a thousand logs is read within one."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        # damaged files make h5py raise OSError, RuntimeError, KeyError, ValueError, ... alike
        if isinstance(error, Exception) and not isinstance(error, (HvdscaleError, FileNotFoundError)):
            raise LogError(f"{self.path}: is damaged and cannot be read as it is: {first_line(error)}; "
                           f"'hvdscale-log repair {self.path}' saves what is left") from error


def first_line(error: BaseException) -> str:
    """The cause in one line: HDF5 adds its whole write call to some messages."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def superblock(path: str) -> Superblock:
    """The state of an HDF5 file; LogError where it is no HDF5 file of the kind that logs are."""
    try:
        with open_input(path, buffering=0) as file:
            head = file.read(SUPERBLOCK.size)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LogError(f"{path}: cannot be opened: {error.strerror}") from error
    if size == 0:
        raise LogError(f"{path}: is an empty file, not a log")
    if not SIGNATURE.startswith(head[:8]) or len(head) < 8:
        raise LogError(f"{path}: is not an HDF5 file, so not a log")
    if len(head) < SUPERBLOCK.size:
        raise LogError(f"{path}: is truncated to {size} bytes; nothing is left of the log")
    _, version, _, _, flags, _, _, end, _, _ = SUPERBLOCK.unpack(head)
    if version < 2:                                    # an older layout, which no log has; HDF5 knows its end
        return Superblock(0, 0, size)
    return Superblock(flags, end, size)


def open_file(path: str, tolerant: bool = False) -> h5py.File:
    """A log's file, opened for reading whatever state it is in: closed, live, or left by a killed writer. LogError
    where it is not a log or of a newer schema; FileNotFoundError where it is missing. ``tolerant`` opens a closed file
    that was cut off, too; what is lost may read as zeros (see ``rows_within``)."""
    state = superblock(path)
    with reading(path):
        if state.flags or tolerant:
            file = h5py.File(Unclosed(path), "r")
        elif state.cut:
            raise LogError(f"{path}: {state.cut}; 'hvdscale-log repair {path}' saves what it can")
        else:
            file = h5py.File(path, "r", locking=False)
        try:
            if attribute_of(file, "format") != FORMAT:
                raise ForeignFile(f"{path}: is an HDF5 file, but not an hvdscale log (it has no attribute format = "
                                  f"{FORMAT!r})")
            version = attribute_of(file, "version")
            if version is None or int(version) < 1:
                raise LogError(f"{path}: names no schema version of a log; its attribute version is {version}")
            if int(version) > VERSION:
                raise LogError(f"{path}: is written in schema version {int(version)}, this hvdscale ({__version__}) "
                               f"reads up to version {VERSION}; install a newer hvdscale")
            # none is opened: of a live log the rows that count are read before all else
            for name in () if tolerant else (*TABLES, "text"):
                try:
                    refuse_link(path, file.id, "", name)
                except KeyError:
                    raise LogError(f"{path}: is a damaged log: it has no /{name}") from None
        except BaseException as error:
            file.close()
            if state.size < state.end:
                raise LogError(f"{path}: is truncated to {state.size:,} of {state.end:,} bytes; "
                               "nothing is left of the log") from error
            raise
    return file


class Unclosed(Positioned):
    """A file that HDF5 was not done with, read as if it had been closed: its "being written" flags cleared, and without
    an end, as it may grow. HDF5's own way, reading in SWMR mode, waits on a damaged spot for hours (seen: HDF5 2.0).
    """

    def __init__(self, path: str) -> None:
        super().__init__(NO_END)
        self._file = open_input(path, buffering=0)
        head = self._file.read(SUPERBLOCK.size)
        signature, version, offsets, lengths, _, base, extension, _, root, checksum = SUPERBLOCK.unpack(head)
        if checksum != lookup3(head[:-4]):
            raise OSError("its first 48 bytes are damaged")
        head = SUPERBLOCK.pack(signature, version, offsets, lengths, 0, base, extension, NO_END, root, 0)[:-4]
        self._head = head + lookup3(head).to_bytes(4, "little")

    def readinto(self, buffer: Any) -> int:
        begin, view = self._at, self._fill(buffer, self._file.fileno())
        part = self._head[begin:begin + len(view)]
        view[:len(part)] = part
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def lookup3(data: bytes) -> int:
    """HDF5's checksum of metadata: Bob Jenkins' lookup3, hashlittle with initial value 0 (public domain, 2006). Each
    round works on (a, b, c) and then renames them, so that one line serves for all three."""
    mask, blocks = 0xFFFFFFFF, -(-len(data) // 12)
    words = struct.unpack(f"<{3 * blocks}I", data.ljust(12 * blocks, b"\0"))
    a = b = c = (0xDEADBEEF + len(data)) & mask

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> (32 - bits)) & mask
    for block in range(blocks):
        a, b, c = ((x + word) & mask for x, word in zip((a, b, c), words[3 * block:]))
        for bits in (4, 6, 8, 16, 19, 4) if block < blocks - 1 else ():
            a, b, c = b, (c + b) & mask, ((a - c) & mask) ^ rotate(c, bits)
    for bits in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, ((c ^ b) - rotate(b, bits)) & mask, a
    return b


def part_of(path: str, file: h5py.File, name: str) -> Any:
    """The table, column or heap of this name; KeyError where there is none. LogError where it lies in another file: a
    log from elsewhere must not show, or copy, what this machine has."""
    found, above = file.id, ""
    for step in name.split("/"):
        refuse_link(path, found, above, step)
        found, above = h5py.h5o.open(found, step.encode("utf-8", "surrogateescape")), f"{above}/{step}"
    if not isinstance(found, h5py.h5d.DatasetID):
        return h5py.Group(found)
    refuse_odd_storage(path, dataset := h5py.Dataset(found))
    return dataset


def refuse_link(path: str, group: Any, above: str, name: str) -> None:
    """LogError where a name in a group leads elsewhere, KeyError where there is none."""
    if group.links.get_info(name.encode("utf-8", "surrogateescape")).type != h5py.h5l.TYPE_HARD:
        raise LogError(f"{path}: {above}/{name} is a link, as nothing in a log is; it is not followed")


def datasets_in(file: h5py.File) -> list[str]:
    """Datasets of a log, such as "steps/loss". No link is followed and no dataset opened: HDF5 walks over links in half
    the time that objects take."""
    found: list[str] = []

    def visit(name: bytes, link: Any) -> None:
        if link.type == h5py.h5l.TYPE_HARD:
            found.append(name.decode("utf-8", "surrogateescape"))
    root = h5py.h5g.open(file.id, b"/")         # which its links do not keep open
    root.links.visit(visit, info=True)
    groups = {name.rpartition("/")[0] for name in found}
    return [name for name in found if name not in groups and (
        name in NAMES or name.count("/") > 1
        or h5py.h5o.get_info(file.id, name.encode("utf-8", "surrogateescape")).type == h5py.h5o.TYPE_DATASET)]


def refuse_odd_storage(path: str, dataset: h5py.Dataset) -> None:
    """LogError where a dataset has its values in another file, or in pieces so large that one may take all memory."""
    how = dataset.id.get_create_plist()
    if how.get_external_count() or how.get_layout() == h5py.h5d.VIRTUAL:
        raise LogError(f"{path}: {dataset.name} has its values in another file, as no part of a log has; it is not "
                       "read")
    if how.get_layout() == h5py.h5d.CHUNKED:
        size = math.prod(how.get_chunk()) * dataset.dtype.itemsize
        if size > MOST_CHUNK:
            raise LogError(f"{path}: {dataset.name} is in pieces of {size:,} bytes, as no column of a log is")


def rows_within(dataset: h5py.Dataset, rows: int, size: int) -> int:
    """How many of the first ``rows`` rows lie in chunks that end within ``size`` bytes of file: beyond the end of one
    that was cut short, zeros are read."""
    if rows == 0:
        return 0
    if not dataset.chunks:
        start = dataset.id.get_offset()
        return rows if start is not None and start + dataset.id.get_storage_size() <= size else 0
    step = dataset.chunks[0]
    for first in range(0, rows, step):
        chunk = dataset.id.get_chunk_info_by_coord((first,) + (0,) * (dataset.ndim - 1))
        if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
            return first
    return rows


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
