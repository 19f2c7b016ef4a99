"""Files and folders are written whole or not at all, kept by the disk, and removed on failure."""
import os

import pytest

from hvdscale.errors import DataError
from hvdscale.system.files import whole_file, whole_folder, write_whole, writing


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
