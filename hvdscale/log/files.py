"""One HDF5 file of a log: what each has when it is made, what is looked at when it is opened, and its datasets, which
must be laid out as the schema says, so that what is read is what was meant, and claim no more than the file can hold.

    with reading(path):                               any failure inside is a LogError that names the file
        file = open_file(path)
"""

import contextlib
import io
import json
import math
import os
import platform
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np

from .. import __version__
from ..errors import HvdscaleError, LogError
from ..system.files import new_descriptor
from ..system.inputs import open_input
from ..system.outputs import Kind, refuse_foreign
from .schema import FORMAT, TABLES, VERSION, LogColumn, Status

NO_END = 1 << 60
BOUNDS = ("v110", "v110")                # the oldest file layout that has SWMR: HDF5 1.10 and later read it
STATUS_TYPE = h5py.enum_dtype({status.name: status.value for status in Status}, basetype="i1")
TYPES = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "text": np.dtype("<i8"), "status": STATUS_TYPE,
         "bytes": np.dtype("u1")}
SIGNATURE = b"\x89HDF\r\n\x1a\n"
LOG = Kind("a log", lambda head: head.startswith(SIGNATURE))
# signature, version, sizes, flags, base, extension, end of file, root group, checksum (HDF5 file format III, II.A)
SUPERBLOCK = struct.Struct("<8sBBBBQQQQI")
MOST_ATTRIBUTE, MOST_ATTRIBUTES = 1 << 20, 4 << 20      # bytes of one, and of all of a file; a log has a few thousand
MOST_CHUNK = 1 << 26                     # bytes of a piece of a column
WRITTEN = {"versions": dict, "changes": dict, "imported": dict, "merged": int}         # types of root attributes


class Superblock(NamedTuple):
    """What a file's first bytes say: flags of its state, the end of file that HDF5 counts on, and its real size; of a
    closed file that was cut off, where, in words."""

    flags: int
    end: int
    size: int
    cut: str = ""


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
        open_file(path)[0].close()
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


def attribute_of(where: h5py.h5g.GroupID, name: str) -> Any:
    """An attribute as it was written: int, float, str, or the dict or list that is stored as JSON. None where there is
    none, or one that no log has: of another type, or of more than MOST_ATTRIBUTE bytes."""
    try:
        found = h5py.h5a.open(where, name.encode("utf-8", "surrogateescape"))
    except KeyError:
        return None
    kind = found.get_type()
    size = kind.get_size()
    is_one = h5py.h5a.get_info(found).data_size == size or found.get_space().get_simple_extent_npoints() == 1
    if not is_one or size > MOST_ATTRIBUTE:
        return None
    fixed = isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    data = np.empty((), f"S{size}" if fixed else kind.dtype)        # which h5py finds out slowly
    found.read(data, mtype=None if data.dtype.hasobject else kind)
    value = data.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return value if isinstance(value, (int, float)) else None
    if value[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value if len(value) <= MOST_ATTRIBUTE else None


def create_column(group: h5py.Group, column: LogColumn, rows: int, **layout: Any) -> h5py.Dataset:
    """The dataset of a column, with its unit and meaning; ``layout`` are the arguments of h5py's create_dataset."""
    of_row = (2,) if column.type == "text" else ()
    layout |= {name: (*layout[name], *of_row) for name in ("chunks", "maxshape") if name in layout}
    dataset = group.create_dataset(column.name, shape=(rows, *of_row), dtype=TYPES[column.type], **layout)
    for name, value in (("unit", column.unit), ("meaning", column.meaning), ("better", column.better)):
        if value:
            write_attribute(dataset, name, value)
    return dataset


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what goes wrong while HDF5 reads ``path`` into a LogError; FileNotFoundError stays, for who retries, and
    what is raised on purpose, such as by a signal."""
    try:
        yield
    except (HvdscaleError, FileNotFoundError):
        raise
    except Exception as error:              # damaged files make h5py raise OSError, RuntimeError, KeyError and others
        raise LogError(f"{path}: is damaged and cannot be read as it is: {first_line(error)}; "
                       f"'hvdscale-log repair {path}' saves what is left") from error


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
    cut = "" if flags or size >= end else f"is cut off at byte {size:,} of {end:,}; copy it again"
    return Superblock(flags, end, size, cut)


def open_file(path: str, tolerant: bool = False) -> tuple[h5py.File, dict[str, Any]]:
    """A log's file, opened for reading whatever state it is in: closed, live, or left by a killed writer; and its root
    attributes but those of another type than they are written with. LogError where it is not a log, is of a newer
    schema, or has more attributes than a log; FileNotFoundError where it is missing. ``tolerant`` opens a closed file
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
            if attribute_of(file.id, "format") != FORMAT:
                raise ForeignFile(f"{path}: is an HDF5 file, but not an hvdscale log (it has no attribute format = "
                                  f"{FORMAT!r})")
            names: list[bytes] = []
            h5py.h5a.iterate(file.id, names.append)
            found: dict[str, Any] = {}
            size = 0
            for name in (name.decode("utf-8", "surrogateescape") for name in names):
                value = attribute_of(file.id, name)
                size += len(str(value))
                if size > MOST_ATTRIBUTES:
                    raise LogError(f"{path}: its attributes have over {MOST_ATTRIBUTES >> 20} MiB, as no log's have")
                if value is not None and isinstance(value, WRITTEN.get(name, object)):
                    found[name] = value
            version = found.get("version")
            if version is None or int(version) < 1:
                raise LogError(f"{path}: names no schema version of a log; its attribute version is {version}")
            if int(version) > VERSION:
                raise LogError(f"{path}: is written in schema version {int(version)}, this hvdscale ({__version__}) "
                               f"reads up to version {VERSION}; install a newer hvdscale")
            # none is opened: of a live log the rows that count are read before all else
            for name in () if tolerant else (*TABLES, "text"):
                if not file.id.links.exists(name.encode()):
                    raise LogError(f"{path}: is a damaged log: it has no /{name}")
        except BaseException as error:
            file.close()
            if state.size < state.end:
                raise LogError(f"{path}: is truncated to {state.size:,} of {state.end:,} bytes; "
                               "nothing is left of the log") from error
            raise
    return file, found


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


class Stored(NamedTuple):
    """The dataset of a column or the heap, with what h5py's own would ask HDF5 for again at each use."""

    id: h5py.h5d.DatasetID
    type: h5py.h5t.TypeID
    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self, first: int, stop: int) -> np.ndarray:
        """Rows first:stop; all of them without h5py's selection, which takes ten times as long."""
        if (first, stop) != (0, self.shape[0]):
            return h5py.Dataset(self.id)[first:stop]
        values = np.empty(self.shape, self.dtype)
        self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values, self.type)
        return values

    def chunk_rows(self) -> int:
        """Of each of its pieces; 0: it is in one."""
        how = self.id.get_create_plist()
        return how.get_chunk()[0] if how.get_layout() == h5py.h5d.CHUNKED else 0

    def rows_within(self, rows: int, size: int) -> int:
        """How many of the first ``rows`` rows lie in chunks that end within ``size`` bytes of file: beyond the end of
        one that was cut short, zeros are read."""
        if rows == 0:
            return 0
        step = self.chunk_rows()
        if not step:
            start = self.id.get_offset()
            return rows if start is not None and start + self.id.get_storage_size() <= size else 0
        for first in range(0, rows, step):
            chunk = self.id.get_chunk_info_by_coord((first,) + (0,) * (len(self.shape) - 1))
            if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
                return first
        return rows


def part_of(path: str, file: h5py.File, name: str, is_known: bool = False) -> Any:
    """The table, column or heap of this name in a file: a GroupID or Stored; KeyError where there is none. LogError for
    a link, for values in another file, as a log from elsewhere must not show, or copy, what this machine has, and for
    pieces so large that one may take all memory. is_known: that no link leads there."""
    found, whole = file.id, name.encode("utf-8", "surrogateescape")
    for step in [whole] if is_known else whole.split(b"/"):
        if not is_known and found.links.get_info(step).type != h5py.h5l.TYPE_HARD:
            raise LogError(f"{path}: /{name} is a link, as nothing in a log is; it is not followed")
        found = h5py.h5o.open(found, step)
    if isinstance(found, h5py.h5g.GroupID):
        return found
    kind = found.get_type()
    dtype = kind.dtype
    if found.get_offset() is None:              # else they are in one piece, of this file
        how = found.get_create_plist()
        if how.get_external_count() or how.get_layout() == h5py.h5d.VIRTUAL:
            raise LogError(f"{path}: /{name} has its values in another file, as no part of a log has; it is not read")
        size = math.prod(how.get_chunk()) * dtype.itemsize if how.get_layout() == h5py.h5d.CHUNKED else 0
        if size > MOST_CHUNK:
            raise LogError(f"{path}: /{name} is in pieces of {size:,} bytes, as no column of a log is")
    return Stored(found, kind, dtype, found.shape)
