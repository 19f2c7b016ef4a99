"""Text files: their lines come whole, in chunks and parts; what is no text is a DataError naming file and line."""
import gzip
import lzma
import os
import random
import tracemalloc

import pytest

from hvdscale.errors import DataError
from hvdscale.workloads.files import read_file
from hvdscale.workloads.large.readers import text as reader
from hvdscale.workloads.large.readers.images import centre_crop, random_crop
from hvdscale.workloads.large.readers.text import Text, cut_in_order

PACK = {"plain": bytes, "gzip": gzip.compress, "xz": lzma.compress}
SAMPLE = "First line\n\n  spaces kept  \nümlaut ☃ 𝄞\nlast without end"


def lines(text):
    return [line for lines, _ in text.chunks() for line in lines]


def written(path, content, pack="plain"):
    path.write_bytes(PACK[pack](content if isinstance(content, bytes) else content.encode()))
    return path


def refused(path, content, pack="plain"):
    """The message about a file of these bytes."""
    with pytest.raises(DataError) as caught:
        lines(Text(written(path, content, pack)))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(reader, "CHUNK", 64)


@pytest.mark.parametrize("pack", PACK)
def test_lines_come_as_they_were_written(tmp_path, pack):
    assert lines(Text(written(tmp_path / "file", SAMPLE, pack))) == SAMPLE.split("\n")


@pytest.mark.parametrize("pack", PACK)
def test_lines_are_whole_whatever_the_chunks_are(tmp_path, pack, small_chunks):
    drawn = random.Random(0)
    wanted = ["".join(drawn.choices("ab ü☃𝄞", k=drawn.randrange(20))) for _ in range(300)]
    file = Text(written(tmp_path / "file", "\n".join(wanted) + "\n", pack))
    assert lines(file) == wanted
    assert len(list(file.chunks())) > 50


def test_lines_end_in_a_line_feed_alone_or_as_on_windows_and_a_byte_order_mark_is_no_text(tmp_path):
    assert lines(Text(written(tmp_path / "file", "\ufeffone\r\ntwo\r\n"))) == ["one", "two"]
    assert lines(Text(written(tmp_path / "file", "a\x0bb\u2028c\x85d\n"))) == ["a\x0bb\u2028c\x85d"]


def test_a_line_longer_than_a_chunk_comes_in_pieces_cut_at_spaces(tmp_path, small_chunks):
    words = [f"word{number}" for number in range(200)]
    pieces = lines(Text(written(tmp_path / "file", " ".join(words) + "\nnext\n")))
    assert len(pieces) > 10 and pieces[-1] == "next"
    assert "".join(pieces[:-1]).split() == words
    assert max(len(piece) for piece in pieces) <= 2 * 64


@pytest.mark.parametrize("letter", ["x", "ü", "☃", "𝄞"])
def test_a_line_without_spaces_is_cut_into_parts_between_characters(tmp_path, small_chunks, letter):
    for first in range(4):
        file = written(tmp_path / "file", "x" * first + letter * 2000)
        parts = cut_in_order(file, 0.3, 0.3)
        assert all(part.stop - part.start > 500 for part in parts)
        assert "".join("".join(lines(part)) for part in parts) == "x" * first + letter * 2000


@pytest.mark.parametrize("pack", PACK)
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path, pack, small_chunks, worded):
    said = refused(tmp_path / "file", b"fine\n" * 99 + b"caf\xe9 au lait\nfine\n", pack)
    worded(said)
    assert "iconv" in said


def test_a_nul_byte_is_named_with_its_line(tmp_path, worded):
    worded(refused(tmp_path / "file", b"one\ntwo\nthr\0ee\n"))


@pytest.mark.parametrize("pack", PACK)
def test_an_empty_file_is_refused(tmp_path, pack):
    assert "is empty" in refused(tmp_path / "file", b"", pack)


@pytest.mark.parametrize("pack", ["gzip", "xz"])
def test_a_compressed_file_cut_or_changed_anywhere_is_refused_or_read_whole(tmp_path, pack):
    whole, path = PACK[pack]("\n".join(map(str, range(100))).encode()), tmp_path / "file"
    for at in range(8, len(whole)):
        assert "ends early or is damaged" in refused(path, whole[:at])
        try:
            found = lines(Text(written(path, whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:])))
        except DataError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            assert found == [str(number) for number in range(100)]              # a time or name in the header
    if pack == "gzip":
        path.write_bytes(whole + bytes(8))                                      # padding
        assert len(lines(Text(path))) == 100
        path.write_bytes(whole + b"more")
        with pytest.raises(DataError, match="is damaged"):
            lines(Text(path))


READERS = {"text": lambda path: lines(Text(path)), "parts": cut_in_order, "IDX": read_file,
           "picture": lambda path: centre_crop(path, 8), "random crop": lambda path: random_crop(path, 8)}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_missing_file_a_folder_and_a_pipe_are_refused_by_every_reader(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path, said in [(tmp_path / "none", "cannot be read: No such file"), (tmp_path, "is not a regular file"),
                       (tmp_path / "pipe", "is not a regular file")]:
        with pytest.raises(DataError, match=f"{path}: {said}"):
            read(path)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("ends", ["\n", ""])
def test_parts_of_a_file_hold_each_line_once_in_order(tmp_path, pack, ends, small_chunks):
    wanted = [f"line {number} " + "x" * (number % 7) for number in range(400)]
    parts = cut_in_order(written(tmp_path / "file", "\n".join(wanted) + ends, pack))
    found = [lines(part) for part in parts]
    assert sum(found, []) == wanted
    assert [len(part) for part in found] == pytest.approx([360, 20, 20], abs=2)
    halves = [lines(part) for part in cut_in_order(tmp_path / "file", 0.5)]
    assert sum(halves, []) == wanted and len(halves) == 2


def test_a_file_of_one_line_is_cut_at_spaces(tmp_path, small_chunks):
    words = [f"word{number}" for number in range(1000)]
    found = [" ".join(lines(part)).split() for part in cut_in_order(written(tmp_path / "file", " ".join(words)))]
    assert sum(found, []) == words and all(found)


def test_files_of_a_few_bytes_are_cut_without_losing_any(tmp_path):
    for content in ("a", "a\n", "a\nb", "\n", "a\nb\nc\n"):
        parts = cut_in_order(written(tmp_path / "file", content))
        assert "\n".join(line for part in parts for line in lines(part)) == content.removesuffix("\n")


def test_what_is_held_out_of_a_large_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "HELD_OUT_MOST", 100)
    train, val, test = cut_in_order(written(tmp_path / "file", "123456789\n" * 1000))
    assert (train.start, val.stop - val.start, test.stop - test.start) == (0, 100, 100)


def test_bytes_read_add_up_to_the_files_size(tmp_path, small_chunks):
    for pack in PACK:
        file = Text(written(tmp_path / "file", "some words\n" * 5000, pack))
        read = sum(read for _, read in file.chunks())
        assert file.stored_bytes == (tmp_path / "file").stat().st_size
        assert 0 <= file.stored_bytes - read <= 64 if pack == "plain" else read <= file.stored_bytes
    train, val, test = cut_in_order(written(tmp_path / "file", "some words\n" * 5000))
    assert sum(part.stored_bytes for part in (train, val, test)) == 55000


def test_reading_takes_memory_for_chunks_not_for_the_file(tmp_path):
    path = written(tmp_path / "file", ("word " * 20 + "\n") * 300_000)          # 30 MB
    tracemalloc.start()
    assert sum(len(lines) for lines, _ in Text(path).chunks()) == 300_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6
