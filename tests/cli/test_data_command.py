"""hvdscale-data: what is fetched is whole and the published file, however the server and the disk behave."""
import contextlib
import hashlib
import http.server
import io
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hvdscale.cli.data import Bar, main
from hvdscale.data import fetch as bringing
from hvdscale.data.fetch import BY_HAND, DATA_SETS, Archive, DataSet, PublishedFile, download
from hvdscale.errors import DataError
from tests.cli.test_live import Terminal
from tests.conftest import command_environment, heed_ctrl_c

CONTENT = bytes(range(256)) * 40
TAG = '"version-1"'


class Server:
    """An HTTP server of a few files, on a thread; what is asked of it is noted, and it misbehaves as it is told.

    files   path -> bytes
    tags    path -> ETag; without one, none is sent
    ranges  whether it honours Range
    cuts    how many bytes of the next answers' bodies are sent before the connection is closed; None: all
    told    whether answers have a Content-Length
    silent  where it is an event: nothing follows the first 1,000 bytes until it is set
    """

    def __init__(self):
        self.files, self.tags, self.ranges, self.cuts, self.told = {}, {}, True, [], True
        self.asked, self.silent, self.codes = [], None, {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted, request.headers.get("If-Range")))
        content, tag = self.files.get(request.path), self.tags.get(request.path)
        if request.path in self.codes or content is None:
            return request.send_error(self.codes.get(request.path, 404))
        first, same = 0, request.headers.get("If-Range") in (None, tag)
        if wanted and self.ranges and same:
            first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if first >= len(content):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(content)}")
                return request.end_headers()
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        if self.told:
            request.send_header("Content-Length", str(len(content) - first))
        if tag:
            request.send_header("ETag", tag)
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        body = content[first:] if cut is None else content[first:first + cut]
        if self.silent is not None:
            request.wfile.write(body[:max(0, 1000 - first)])
            request.wfile.flush()
            self.silent.wait(10)
        request.wfile.write(body)

    def file(self, name="file.bin", content=CONTENT, tag=TAG, size=True, sha256=None, more=()):
        """A file that the server has, as it is published."""
        self.files[f"/{name}"] = content
        if tag:
            self.tags[f"/{name}"] = tag
        return PublishedFile(name, (self.address(name), *more), sha256 or hashlib.sha256(content).hexdigest(),
                             len(content) if size else None)

    def address(self, name):
        return f"http://127.0.0.1:{self.http.server_port}/{name}"


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    if server.silent is not None:
        server.silent.set()
    server.http.shutdown()
    server.http.server_close()


def closed_port():
    """An address that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"


def bring(file, folder, **more):
    """Download without waiting; gives the bytes that the file has then, and asks that nothing else be left."""
    path = download(file, folder, lambda *_: None, wait=lambda _: None, **more)
    assert path == folder / file.name and os.listdir(folder) == [file.name]
    return path.read_bytes()


def refused(file, folder, **more):
    with pytest.raises(DataError) as caught:
        download(file, folder, lambda *_: None, wait=lambda _: None, **more)
    assert not (folder / file.name).exists()
    return str(caught.value)


@contextlib.contextmanager
def largest_file(size):
    """A disk that takes no more than this of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def part(folder, content, version=TAG):
    """Put down what an earlier attempt left."""
    folder.mkdir(exist_ok=True)
    (folder / "file.bin.part").write_bytes(content)
    (folder / "file.bin.part.version").write_text(version)


# one file

@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_file_comes_as_it_is_published(server, tmp_path, size, told):
    server.told = told
    assert bring(server.file(size=size), tmp_path) == CONTENT
    assert server.asked == [("/file.bin", None, None)]


def test_a_broken_connection_is_made_again_and_goes_on_where_it_broke(server, tmp_path):
    server.cuts = [1000, 5000]
    assert bring(server.file(), tmp_path) == CONTENT
    assert server.asked == [("/file.bin", None, None), ("/file.bin", "bytes=1000-", TAG),
                            ("/file.bin", "bytes=6000-", TAG)]


@pytest.mark.parametrize("left, version, ranges", [
    (CONTENT[:7000], TAG, True), (b"x" * 7000, '"version-0"', True), (CONTENT[:7000], TAG, False)])
def test_an_earlier_attempt_is_continued_where_it_is_the_same_file(server, tmp_path, left, version, ranges):
    server.ranges = ranges
    part(tmp_path, left, version)
    assert bring(server.file(), tmp_path) == CONTENT
    assert server.asked == [("/file.bin", "bytes=7000-", version)]


@pytest.mark.parametrize("size", [True, False])
def test_an_attempt_that_ended_before_the_rename_needs_no_more_bytes_and_a_longer_one_is_begun_again(
        server, tmp_path, size):
    part(tmp_path, CONTENT)
    assert bring(server.file(size=size), tmp_path) == CONTENT
    assert server.asked == ([] if size else [("/file.bin", f"bytes={len(CONTENT)}-", TAG)])
    part(tmp_path / "longer", CONTENT + b"more")
    assert bring(server.file(size=size), tmp_path / "longer") == CONTENT


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(server, tmp_path, worded):
    server.ranges, server.cuts = False, [1000] * 9
    said = refused(server.file(), tmp_path)
    worded(said)
    assert len(server.asked) == 2


def test_a_server_without_versions_is_resumed_and_verified_by_checksum(server, tmp_path):
    server.cuts = [1000]
    assert bring(server.file(tag=None), tmp_path) == CONTENT
    assert server.asked[1] == ("/file.bin", "bytes=1000-", None)
    part(tmp_path / "other", b"x" * 7000, version="")
    assert "SHA-256" in refused(server.file(tag=None), tmp_path / "other")
    assert os.listdir(tmp_path / "other") == []


def test_a_weak_tag_names_no_version_but_a_date_does(server, tmp_path):
    file = server.file(tag='W/"1"')
    server.cuts = [1000]
    assert bring(file, tmp_path) == CONTENT
    assert server.asked[1] == ("/file.bin", "bytes=1000-", None)

    class Answer:
        headers = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": 'W/"1"'}
    assert bringing._version(Answer) == "Wed, 21 Oct 2015 07:28:00 GMT"


def test_a_wrong_checksum_is_named_with_the_published_one_and_nothing_is_kept(server, tmp_path, worded):
    file = server.file(sha256="0" * 64)
    said = refused(file, tmp_path)
    worded(said)
    assert os.listdir(tmp_path) == []


def test_a_file_of_another_size_is_refused_before_it_comes(server, tmp_path, worded):
    file, page = server.file(), b"<html>log in to this network</html>"
    server.files["/file.bin"], server.ranges = page, False
    part(tmp_path, CONTENT[:7000])
    worded(refused(file, tmp_path))
    server.ranges = True
    assert "HTTP error 416 " in refused(file, tmp_path)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:7000]
    server.files["/file.bin"], server.told = CONTENT + b"x", False
    assert "sends more than 10,240 bytes" in refused(file, tmp_path / "longer")


def test_other_bytes_than_those_asked_for_are_refused(server, tmp_path, monkeypatch, worded):
    monkeypatch.setattr(bringing, "_range", lambda response: (0, len(CONTENT)))
    part(tmp_path, CONTENT[:7000])
    worded(refused(server.file(), tmp_path))


@pytest.mark.parametrize("code", [404, 403, 500, 503])
def test_what_a_server_answers_instead_is_named(server, tmp_path, code):
    file = server.file()
    server.codes["/file.bin"] = code
    assert f"{server.address('file.bin')}: HTTP error {code} " in refused(file, tmp_path)
    assert os.listdir(tmp_path) == []


def test_addresses_are_tried_in_order_and_all_failures_are_named(server, tmp_path):
    dead = closed_port()
    file = server.file()
    bad = (dead, server.address("none"))
    assert bring(PublishedFile(file.name, (*bad, *file.addresses), file.sha256), tmp_path) == CONTENT
    said = refused(PublishedFile(file.name, bad, file.sha256), tmp_path / "other")
    assert f"  {dead}: no connection: Connection refused\n  {server.address('none')}: HTTP error 404 " in said
    nowhere = PublishedFile("file.bin", ("http://nowhere.invalid/file.bin",), "0" * 64)
    assert "no connection: " in refused(nowhere, tmp_path / "other")


def test_what_one_address_gave_is_gone_on_with_at_the_next(server, tmp_path):
    file = server.file("file.bin", more=(server.address("copy"),))
    server.files["/copy"], server.tags["/copy"] = CONTENT, TAG
    server.cuts = [4000, 0]
    assert bring(file, tmp_path) == CONTENT
    assert server.asked[-1] == ("/copy", "bytes=4000-", TAG)


def test_a_server_that_falls_silent_is_given_up_in_time(server, tmp_path):
    server.silent = threading.Event()
    started = time.monotonic()
    assert "the connection broke: timed out" in refused(server.file(), tmp_path, timeout=0.2)
    assert time.monotonic() - started < 5
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1000]


def test_a_disk_that_takes_no_more_is_named_and_what_came_is_kept(server, tmp_path, monkeypatch, worded):
    monkeypatch.setattr(bringing.shutil, "disk_usage", lambda path: SimpleNamespace(free=2 ** 30))
    with largest_file(4096):
        said = refused(server.file(), tmp_path)
    worded(said)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:4096]
    assert bring(server.file(), tmp_path) == CONTENT
    assert server.asked[-1] == ("/file.bin", "bytes=4096-", TAG)


def test_a_file_that_the_disk_has_no_room_for_is_not_begun(server, tmp_path, monkeypatch, worded):
    monkeypatch.setattr(bringing.shutil, "disk_usage", lambda path: SimpleNamespace(free=99))
    said = refused(server.file(), tmp_path)
    worded(said)
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file' / 'file.bin.part'}: cannot be written" in refused(server.file(), tmp_path / "file")


def test_two_processes_do_not_fetch_one_file_together(server, tmp_path, worded):
    file = server.file()
    held = bringing._PartialFile(tmp_path / "file.bin.part")
    worded(refused(file, tmp_path))
    held.close()
    assert bring(file, tmp_path) == CONTENT


# data sets, and the command

def archived(members, kind):
    """A tar.gz or zip archive of these files."""
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
            for name, content in members.items():
                out.writestr(name, content)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as out:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


MEMBERS = {"words/README": b"read me", "words/wiki.train.tokens": b"a b\n" * 999, "words/wiki.valid.tokens": b"c\n",
           "words/deep/news-1-of-2": b"1", "words/deep/news-2-of-2": b"22", "words/deep/olds-1-of-2": b"333"}
WANTED = {"words/wiki.train.tokens": "train.txt", "words/wiki.valid.tokens": "valid.txt", "*/deep/news-?-of-2": "news/"}
UNPACKED = {"train.txt": b"a b\n" * 999, "valid.txt": b"c\n", "news/news-1-of-2": b"1", "news/news-2-of-2": b"22"}


@pytest.fixture
def published(server, monkeypatch):
    """Two data sets that the server has: of two files, and of an archive."""
    files = (server.file("a.gz", b"first" * 100), server.file("b.gz", b"second" * 100, size=False))
    packed = archived(MEMBERS, "zip")
    sets = {"pair": DataSet("Two files", files, "free", "hvdscale-train pair/model --data-dir {folder}"),
            "words": DataSet("Text", (Archive(server.file("words.zip", packed), WANTED, 4),), "free",
                             "hvdscale-train words/model --data-dir {folder}")}
    monkeypatch.setattr(bringing, "DATA_SETS", sets)
    return sets


def told(*words):
    """What the command prints and its exit code."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output, done.exit_code


def tree(folder):
    """All files below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_data_set_comes_whole_and_the_command_says_what_to_type_next(published, tmp_path):
    folder = tmp_path / "a folder"
    output, code = told("fetch", "pair", "--data-dir", folder)
    assert (code, tree(folder)) == (0, {"a.gz": b"first" * 100, "b.gz": b"second" * 100})
    assert "a.gz: 500 bytes, verified\n" in output and "(terms: free)" in output
    assert output.endswith(f"Next:\n  hvdscale-train pair/model --data-dir '{folder}'\n")


def test_what_is_complete_is_left_as_it_is(published, server, tmp_path):
    told("fetch", "pair", "--data-dir", tmp_path)
    told("fetch", "words", "--data-dir", tmp_path)
    asked, times = len(server.asked), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for name, said in (("pair", "a.gz: already there, verified"),
                       ("words", "words.zip: already unpacked into 4 files")):
        output, code = told("fetch", name, "--data-dir", tmp_path)
        assert code == 0 and said in output and f"{name} is complete" in output
    assert len(server.asked) == asked
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_a_file_that_is_there_and_is_another_is_named_and_left_alone(published, tmp_path):
    (tmp_path / "b.gz").write_bytes(b"mine")
    output, code = told("fetch", "pair", "--data-dir", tmp_path)
    assert code == 1 and f"{tmp_path / 'b.gz'}: has SHA-256 " in output and "Move it away" in output
    assert (tmp_path / "b.gz").read_bytes() == b"mine"


def test_a_lost_file_of_an_archive_is_restored_and_a_foreign_one_is_kept(published, tmp_path, worded):
    told("fetch", "words", "--data-dir", tmp_path)
    (tmp_path / "news" / "news-2-of-2").unlink()
    assert told("fetch", "words", "--data-dir", tmp_path)[1] == 0
    (tmp_path / "train.txt").write_bytes(b"mine")
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    worded(output)
    assert code == 1
    assert (tmp_path / "train.txt").read_bytes() == b"mine"
    (tmp_path / "train.txt").unlink()
    assert told("fetch", "words", "--data-dir", tmp_path)[1] == 0
    assert {**tree(tmp_path), "words.zip.unpacked": b""} == {**UNPACKED, "words.zip.unpacked": b""}


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_what_an_archive_would_write_over_is_compared_byte_by_byte(published, server, tmp_path, kind, worded):
    published["words"] = DataSet("", (Archive(server.file("words", archived(MEMBERS, kind)), WANTED, 4),), "", "")
    (tmp_path / "train.txt").write_bytes(UNPACKED["train.txt"])
    (tmp_path / "valid.txt").write_bytes(b"d\n")
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    worded(output)
    assert code == 1
    assert (tmp_path / "valid.txt").read_bytes() == b"d\n"
    (tmp_path / "valid.txt").unlink()
    written = (tmp_path / "train.txt").stat().st_mtime_ns
    assert told("fetch", "words", "--data-dir", tmp_path)[1] == 0
    assert {**tree(tmp_path), "words.unpacked": b""} == {**UNPACKED, "words.unpacked": b""}
    assert (tmp_path / "train.txt").stat().st_mtime_ns == written


def test_a_full_disk_while_unpacking_is_named_and_a_retry_needs_no_network(published, server, tmp_path):
    with largest_file(2048):
        output, code = told("fetch", "words", "--data-dir", tmp_path)
    assert code == 1 and f"{tmp_path / 'train.txt'}: cannot be written: File too large (" in output
    assert not (tmp_path / "train.txt").exists()
    server.files.clear()
    assert told("fetch", "words", "--data-dir", tmp_path)[1] == 0
    assert {name: content for name, content in tree(tmp_path).items() if name != "words.zip.unpacked"} == UNPACKED


def test_texts_are_joined_in_their_order_and_once(published, server, tmp_path, worded):
    published["words"] = DataSet("", published["words"].files, "", "", {"all.txt": ("valid.txt", "train.txt")})
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    assert code == 0 and "all.txt: joined from valid.txt, train.txt" in output
    assert (tmp_path / "all.txt").read_bytes() == UNPACKED["valid.txt"] + UNPACKED["train.txt"]
    again, _ = told("fetch", "words", "--data-dir", tmp_path)
    worded(again)
    (tmp_path / "all.txt").write_bytes(b"mine")
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    assert code == 1 and "all.txt: has 4 bytes" in output and (tmp_path / "all.txt").read_bytes() == b"mine"


def test_an_archive_that_lacks_a_file_is_named(published, server, tmp_path, worded):
    packed = archived({name: content for name, content in MEMBERS.items() if "2-of" not in name}, "zip")
    published["words"] = DataSet("", (Archive(server.file("words.zip", packed), WANTED, 4),), "", "")
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    worded(output)
    assert code == 1


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_cannot_be_unpacked_is_named(published, server, tmp_path, kind):
    packed = archived({"words/wiki.train.tokens": os.urandom(5000)}, kind)
    broken = packed[:2000] if kind == "tar.gz" else packed[:1000] + bytes(100) + packed[1100:]
    published["words"] = DataSet("", (Archive(server.file("words.zip", broken), WANTED, 4),), "", "")
    output, code = told("fetch", "words", "--data-dir", tmp_path)
    assert code == 1 and f"{tmp_path / 'words.zip'}: cannot be unpacked: " in output
    assert not (tmp_path / "train.txt").exists()


def test_without_a_network_files_to_place_are_named_and_accepted(published, server, tmp_path):
    told("fetch", "words", "--data-dir", tmp_path / "source")
    folder, contents = tmp_path / "data", dict(server.files)
    server.files.clear()
    (folder).mkdir()
    (folder / "a.gz").write_bytes(contents["/a.gz"])
    output, code = told("fetch", "pair", "--data-dir", folder)
    assert code == 1 and "b.gz could not be fetched:\n  http://127.0.0.1" in output and "HTTP error 404" in output
    digest = hashlib.sha256(b"second" * 100).hexdigest()
    assert f"\n  {folder / 'b.gz'}    (SHA-256 {digest}, from {server.address('b.gz')})\n" in output
    assert f"{folder / 'a.gz'} " not in output
    assert output.endswith(f"without a network:\n  hvdscale-data fetch pair --data-dir {folder}\n")
    (folder / "b.gz").write_bytes(contents["/b.gz"])
    assert told("fetch", "pair", "--data-dir", folder)[1] == 0
    output, code = told("fetch", "words", "--data-dir", folder)
    assert code == 1 and "to verify and unpack them without a network" in output
    (folder / "words.zip").write_bytes(contents["/words.zip"])
    assert told("fetch", "words", "--data-dir", folder)[1] == 0
    assert (folder / "train.txt").read_bytes() == UNPACKED["train.txt"]


def test_ctrl_c_keeps_what_came_and_the_next_attempt_goes_on(server, tmp_path, worded):
    server.silent = threading.Event()
    file = server.file()
    script = (f"import hvdscale.data.fetch as f, hvdscale.cli.data as c\n"
              f"from hvdscale.data.fetch import DataSet, PublishedFile\n"
              f"f.DATA_SETS = {{'one': DataSet('', ({file!r},), '', '')}}\nc.main(['fetch', 'one', '--data-dir', 'd'])")
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=command_environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_ctrl_c)
    held = tmp_path / "d" / "file.bin.part"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (held.exists() and held.stat().st_size):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    worded(output)
    assert "Traceback" not in output
    came = held.read_bytes()
    assert came and CONTENT.startswith(came)
    server.silent.set()
    server.silent = None
    assert bring(file, tmp_path / "d") == CONTENT
    assert server.asked[-1] == ("/file.bin", f"bytes={len(came)}-", TAG)


def test_the_folder_is_named_for_the_data_set_where_none_is_given(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told("fetch", "pair")[1] == 0
    assert sorted(tree(tmp_path)) == ["data/pair/a.gz", "data/pair/b.gz"]


@pytest.mark.parametrize("name", ["mnits", "", "../mnist"])
def test_a_data_set_that_there_is_not_is_named_with_those_that_there_are(name, tmp_path, monkeypatch, worded):
    monkeypatch.chdir(tmp_path)
    output, code = told("fetch", name)
    worded(output)
    assert code == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", BY_HAND)
def test_a_data_set_without_a_public_address_says_how_it_is_had(name):
    output, code = told("fetch", name)
    assert code == 2 and f"{name} " in output and "hvdscale-train" in output


def test_the_list_has_every_data_set_with_its_size():
    output, code = told("list")
    assert code == 0
    for name in (*DATA_SETS, *BY_HAND):
        assert re.search(rf"^{name} +\w", output, re.MULTILINE)
    assert re.search(r"^cifar_10 +CIFAR-10, binary version +162\.2 MiB", output, re.MULTILINE)


def test_every_published_file_has_a_checksum_addresses_and_a_place():
    for name, data_set in DATA_SETS.items():
        names = [file.name for file in data_set.published]
        assert len(set(names)) == len(names) and data_set.terms and "{folder}" in data_set.command, name
        for file in data_set.published:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size != 0
            assert all(re.fullmatch(r"https?://\S+", address) and address.endswith(f"/{file.name}")
                       for address in file.addresses)
        for archive in data_set.files:
            if isinstance(archive, Archive):
                folders = [place for place in archive.members.values() if place.endswith("/")]
                assert folders or archive.count == len(archive.members)
    unpacked = {place for data_set in DATA_SETS.values() for archive in data_set.files if isinstance(archive, Archive)
                for place in archive.members.values()}
    assert unpacked >= {part for data_set in DATA_SETS.values() for parts in data_set.joined.values() for part in parts}
    digests = [file.sha256 for data_set in DATA_SETS.values() for file in data_set.published]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("name, folder", [("mnist", "mnist"), ("multi30k", "multi30k"),
                                          ("tinyshakespeare", "text/tinyshakespeare")])
def test_real_files_are_the_published_ones(name, folder):
    from tests.conftest import DATA
    if not all((DATA / folder / file.name).is_file() for file in DATA_SETS[name].published):
        pytest.skip(f"needs {DATA / folder}")
    output, code = told("fetch", name, "--data-dir", DATA / folder)
    assert code == 0 and f"{name} is complete" in output
    for file in DATA_SETS[name].published:
        assert (DATA / folder / file.name).stat().st_size == file.size


# progress

def test_on_a_terminal_there_is_a_bar_and_elsewhere_a_line_now_and_then():
    for out, steps in ((Terminal(), 0.2), (io.StringIO(), 0.2)):
        now = iter(number * steps for number in range(1000))
        bar = Bar(out, clock=lambda: next(now))
        for done in range(0, 101, 1):
            bar.progress("file.gz", done * 2**20, 100 * 2**20)
        bar.say("done")
        text = out.getvalue()
        if out.isatty():
            assert "\r\x1b[K[############------------] file.gz  50.0 MiB of 100.0 MiB  5.0 MiB/s  0:10 left" in text
            assert text.endswith("\r\x1b[Kdone\n") and text.count("\n") == 1
        else:
            lines = text.splitlines()
            assert 3 <= len(lines) <= 6 and "  file.gz  25.0 MiB of 100.0 MiB  5.0 MiB/s  0:15 left" in lines
            assert "\r" not in text and "\x1b" not in text


def test_the_rate_counts_what_came_in_this_attempt():
    out, now = Terminal(), iter([0.0, 10.0])
    bar = Bar(out, clock=lambda: next(now))
    bar.progress("file.gz", 900 * 2**20, None)
    bar.progress("file.gz", 920 * 2**20, None)
    assert out.getvalue().endswith("file.gz  920.0 MiB  2.0 MiB/s")
