"""Files and folders are written whole or not at all, kept by the disk, and removed on failure."""
import errno
import os
import pathlib
import subprocess
import sys

import pytest

from hvdscale.errors import DataError
from hvdscale.system import files
from hvdscale.system.files import (clear_leavings, clear_own, own_folder, temporary_name, whole_file, whole_folder,
                                   write_whole, writing)
from hvdscale.system.lock import Lock


def test_a_file_whose_writing_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_whole(path, "before")
    with pytest.raises(ZeroDivisionError):
        with whole_file(path) as file:
            file.write(b"after")
            1 / 0
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, order = tmp_path / "file", []
    for name in ("fsync", "replace"):
        act = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, act=act, name=name: order.append(name) or act(*args))
    write_whole(path, "text")
    assert order == ["fsync", "replace", "fsync"]           # the file, then its name in the folder
    order.clear()
    write_whole(path, "text", sync=False)
    assert order == ["replace"]


def test_a_name_that_a_folder_has_is_an_error_that_leaves_nothing(tmp_path):
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(DataError, match="folder: cannot be written: "):
        with writing(tmp_path / "folder", DataError):
            write_whole(tmp_path / "folder", "text")
    with pytest.raises(OSError):
        with whole_folder(tmp_path / "folder") as made:
            (tmp_path / made / "file").write_text("text")
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == ["full"]


def test_a_folder_may_be_read_by_whom_the_umask_lets(tmp_path):
    with whole_folder(tmp_path / "folder"):
        pass
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_name_that_is_not_valid_text_is_written_as_escapes(tmp_path):
    write_whole(tmp_path / "file", f"log: {os.fsdecode(bytes([0xff]))}.h5 é")
    assert (tmp_path / "file").read_bytes() == "log: \\udcff.h5 é".encode()


def leave(path, number, folder=False):
    """What a process of this number leaves at a temporary name of the path, locked by nobody."""
    name = temporary_name(path).replace(f"-{os.getpid():x}-", f"-{number:x}-")
    (os.mkdir if folder else pathlib.Path.touch)(pathlib.Path(name))
    clear_leavings.cache_clear()
    return name


@pytest.mark.parametrize("write", [lambda path: write_whole(path, "x"), lambda path: leave_nothing(path)])
def test_the_next_process_clears_what_a_dead_one_left(write, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for folder in (False, True):
        leave(tmp_path / "file", dead.pid, folder)
    (tmp_path / "notes.tmp").touch()
    write(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["notes.tmp", "other"]


def leave_nothing(path):
    with whole_folder(path):
        pass


def test_what_a_living_process_works_on_stays(tmp_path):
    alive = leave(tmp_path / "file", os.getppid())
    with own_folder(temporary_name(tmp_path / "folder")) as locked:
        clear_leavings.cache_clear()
        write_whole(tmp_path / "other", "x")
        assert os.path.exists(alive) and os.path.exists(locked)
    assert not os.path.exists(locked)


def test_a_folder_that_another_process_clears_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    made, mkdir = [], os.mkdir

    def cleared_once(path, mode):
        made.append(mkdir(path, mode))
        if len(made) == 1:
            os.rmdir(path)
    monkeypatch.setattr(os, "mkdir", cleared_once)
    with own_folder(tmp_path / "folder") as folder:
        assert os.path.isdir(folder) and len(made) == 2


def test_another_hosts_file_stays_while_it_is_young_and_where_locks_are_refused_all_stays(tmp_path, monkeypatch):
    kept = tmp_path / f".a.{'0' * 8}-400001-{'0' * 8}.tmp"
    kept.touch()
    folder = leave(tmp_path / "b", 2**22 + 1, folder=True)
    monkeypatch.setattr(files, "flock", lambda *_, **__: errno.ENOLCK)
    clear_leavings(tmp_path)
    assert kept.exists() and os.path.exists(folder)
    monkeypatch.undo()
    clear_leavings.cache_clear()
    clear_leavings(tmp_path)
    assert kept.exists() and not os.path.exists(folder)
    os.utime(kept, (0, 0))
    clear_leavings.cache_clear()
    clear_leavings(tmp_path)
    assert not kept.exists()


def test_a_process_that_a_signal_ends_leaves_neither_what_was_on_the_way_nor_its_locks(tmp_path):
    pathlib.Path(temporary_name(tmp_path / "file")).touch()
    os.mkdir(temporary_name(tmp_path / "folder"))
    os.close(Lock.take(str(tmp_path / "gone")).descriptor)          # in the middle of its release
    os.unlink(tmp_path / "gone.lock")
    Lock.take(str(tmp_path / "log"))                                # which may have its number
    assert len(os.listdir(tmp_path)) == 3
    clear_own()
    assert not os.listdir(tmp_path)
