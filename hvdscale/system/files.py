"""Files and folders written whole or not at all, and never through a link.

What is on its way has a temporary name and the kernel's lock, for as long as its process lives. The next process that
writes into the folder removes what has such a name and no lock: a killed one left it.
"""

import contextlib
import errno
import functools
import os
import platform
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..errors import HvdscaleError, LogError
from .ancestors import find_process
from .lock import flock, is_file, unlink_own

TEMPORARY = ".tmp"                        # a file is made under this ending and then renamed
# as temporary_name makes them, with host and process
ON_THE_WAY = re.compile(rf"\..*\.([0-9a-f]{{8}})-([0-9a-f]+)-[0-9a-f]{{8}}{re.escape(TEMPORARY)}", re.DOTALL)
_made: deque[tuple[int, str]] = deque(maxlen=1000)              # process and path of the newest temporary names
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
FOREIGN_SECONDS = 600           # after which another host's file without a lock counts as left behind


def new_descriptor(path: str | os.PathLike) -> int:
    """A new file, open for reading and writing, in the place of what is there: a link goes, and where it leads nothing
    is written, since folders of logs come from others, too."""
    def make() -> int:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return _locked(path, make)


def _locked(path: str | os.PathLike, make: Callable[[], int]) -> int:
    """The descriptor of what ``make`` makes at the path, with the lock by which others see that this process lives."""
    while True:
        descriptor = make()
        flock(descriptor)
        if is_file(descriptor, path):
            return descriptor
        os.close(descriptor)                # another process took it for left behind before it was locked


@contextlib.contextmanager
def new_file(path: str | os.PathLike, sync: bool = True) -> Iterator[BinaryIO]:
    """Likewise, open for writing bytes; removed again where an error is raised. ``sync``: have the disk keep it."""
    try:
        with open(new_descriptor(path), "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except BaseException:
        remove(path)
        raise


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, sync: bool = True) -> Iterator[BinaryIO]:
    """The same under another name, and in the place of ``path`` once ``with`` has ended without an error."""
    temporary = temporary_name(path)
    with new_file(temporary, sync) as file:
        yield file
    put_in_place(temporary, path, sync)


def put_in_place(temporary: str | os.PathLike, path: str | os.PathLike, sync: bool = True) -> None:
    """Gives a finished file the name ``path``, in the place of what is there; removes it where that fails."""
    try:
        os.replace(temporary, path)
    except OSError:
        remove(temporary)
        raise
    if sync:
        sync_directory(path)


def remove(path: str | os.PathLike) -> None:
    """Removes a file, if it is there and can be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def rename_new(temporary: str, path: str) -> None:
    """Rename a file to a name that nothing has; FileExistsError where another process, on any host, took it first.
    Without hard links the name is an empty file's for an instant."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        if os.stat(temporary).st_nlink != 2:        # 2: ours, and the NFS server's first reply was lost
            raise FileExistsError(errno.EEXIST, "another process has made it meanwhile", path) from error
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.replace(temporary, path)
        return
    os.unlink(temporary)


def write_whole(path: str | os.PathLike, content: str | bytes, sync: bool = True) -> None:
    """Put a file in the place of what is there, whole or not at all; raises OSError where it cannot be written."""
    with whole_file(path, sync=sync) as file:
        file.write(as_bytes(content))


def as_bytes(content: str | bytes) -> bytes:
    r"""Text in UTF-8; bytes of a file's name in it that are not are written as in Python, \udcff."""
    return content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content


def temporary_name(path: str | os.PathLike) -> str:
    """A hidden name beside ``path`` that no other process takes."""
    folder, name = os.path.split(os.fspath(path))
    clear_leavings(folder or ".")
    made = os.path.join(folder, f".{name[-180:]}.{_host()}-{os.getpid():x}-{uuid.uuid4().hex[:8]}{TEMPORARY}")
    _made.append((os.getpid(), os.path.abspath(made)))
    return made


def clear_own() -> None:
    """Removes what this process has on the way, and its locks, at its end by a signal, between any two statements."""
    unlink_own()
    for process, path in _made:
        if process == os.getpid():
            remove(path)
            shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


@functools.lru_cache(maxsize=64)
def clear_leavings(folder: str | os.PathLike, names: re.Pattern[str] = ON_THE_WAY) -> None:
    """Removes what killed processes have left in a folder, once: files and folders of these names without a lock; none
    where the file system refuses locks."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):              # another process may clear it, too
                found = names.fullmatch(entry.name)
                if found and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    _clear(entry, *found.groups())


def _clear(entry: os.DirEntry, host: str = "", pid: str = "0") -> None:
    # a folder is locked as long as it is used, a file is not while it is renamed
    is_folder = entry.is_dir(follow_symlinks=False)
    if not is_folder and (host == _host() and find_process(int(pid, 16)) or host != _host() and (
            time.time() - entry.stat().st_mtime < FOREIGN_SECONDS)):
        return
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # over NFS a folder cannot be locked, and a file that is open for reading can be shared alone
        if flock(descriptor, shared=not is_folder) is None and is_file(descriptor, entry.path):
            (shutil.rmtree if is_folder else os.unlink)(entry.path)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def own_folder(path: str | os.PathLike, mode: int = 0o777) -> Iterator[str]:
    """A new folder with the lock of this process, removed when ``with`` ends; raises OSError if it exists."""
    def make() -> int:
        while True:                         # until no other process clears it before it is open
            os.mkdir(path, mode)
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = _locked(path, make)
    try:
        yield os.fspath(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A new folder of this user alone in TMPDIR, removed when ``with`` ends; those of killed processes go, too."""
    with own_folder(temporary_name(os.path.join(tempfile.gettempdir(), "hvdscale")), 0o700) as path:
        yield path


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike) -> Iterator[str]:
    """A new folder under another name, which becomes ``path`` once ``with`` has ended without an error."""
    with own_folder(temporary_name(path)) as folder:
        yield folder
        os.rename(folder, path)


@contextlib.contextmanager
def writing(path: str | os.PathLike, refused: type[HvdscaleError] = LogError) -> Iterator[None]:
    """Turns what the disk refuses into an error that names what was to be written."""
    try:
        yield
    except OSError as error:
        raise refused(f"{path}: cannot be written: {error.strerror or error}") from error


def sync_directory(path: str | os.PathLike) -> None:
    """Has the disk keep the name of a file that was made or renamed; a file system that cannot is let be."""
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
