"""Files made to do harm: what they lead to is neither read nor written over, nor do names in them act on who reads."""
import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import tracemalloc
import unicodedata
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli import log, report
from hvdscale.cli.data import Bar
from hvdscale.data import fetch
from hvdscale.errors import LogError
from hvdscale.exchange import exported
from hvdscale.exchange.archive.sources import OPENERS
from hvdscale.exchange.csv_tables import import_tables
from hvdscale.formatting.screen import as_cell, of_cell, printable
from hvdscale.log.merge import merge
from hvdscale.log.reader import read_log
from hvdscale.log.repair import repair
from hvdscale.log.files import SafeFile
from hvdscale.log.schema import Status
from hvdscale.report.output import put_file
from hvdscale.sweep.run import SweepDisplay
from hvdscale.system.files import write_whole
from hvdscale.system.lock import Lock, holder
from tests.golden import make_v1
from tests.factories.logs import log as made_log, save, trial

GOOD = make_v1.__file__.replace("make_v1.py", "v1.h5")
SECRET = b"what this machine has " * 1000


def said(command, *arguments):
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def elsewhere(file, name, other):
    """The dataset's values in another file, as they stand there."""
    size = len(file[name])
    del file[name]
    file.create_dataset(name, (size,), "u1", external=[(str(other), 0, size)])


def link(file, name, other):
    del file[name]
    file[name] = h5py.ExternalLink(str(other), name)


def soft_link(file, name, other):
    file["away"] = h5py.ExternalLink(str(other), "/")
    del file[name]
    file[name] = h5py.SoftLink(f"/away/{name}")


def virtual(file, name, other):
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    layout = h5py.VirtualLayout(shape, dtype)
    layout[...] = h5py.VirtualSource(str(other), name, shape)
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("how, name", [
    (elsewhere, "text"), (link, "text"), (soft_link, "text"), (virtual, "text"), (link, "trials"),
    (virtual, "evaluations/step"), (link, "evaluations/step"), (virtual, "steps/committed_rows"),
    (soft_link, "steps/committed_rows")])
def test_a_log_does_not_show_other_files(how, name, tmp_path, worded):
    other, path = tmp_path / "other.h5", str(tmp_path / "log.h5")
    shutil.copyfile(GOOD, other)
    if how is elsewhere:
        other.write_bytes(SECRET)
    else:
        with h5py.File(other, "r+") as file:
            file["text"][:] = np.resize(np.frombuffer(SECRET, np.uint8), len(file["text"]))
    shutil.copyfile(GOOD, path)
    with h5py.File(path, "r+") as file:
        how(file, name, other)
    with worded.error(LogError):
        read_log(path)
    for command in (log.main, ["show", path]), (log.main, ["check", path]), (report.main, [path]):
        assert "what this machine" not in said(command[0], *command[1])
    with pytest.raises(LogError):
        merge([path, GOOD], str(tmp_path / "merged.h5"))
    try:
        repair(path)                                            # of a copy, what is its own
    except LogError:
        return
    with h5py.File(path) as file:
        assert b"what this machine" not in file["text"][:].tobytes()


@pytest.mark.parametrize("closed", [True, False])
def test_a_log_that_claims_too_much_text_is_refused_unread(closed, tmp_path, worded):
    path = tmp_path / "log.h5"
    shutil.copyfile(GOOD, path)
    with h5py.File(path, "r+") as file:
        spans = file["trials/plan"][...]
        spans[0] = 0, 10**10
        file["trials/plan"][...] = spans
        del file["text"]
        file.create_dataset("text", (10**10,), "u1", chunks=(1024,) if closed else None)
    with worded.error(LogError):
        read_log(path)


def test_nothing_is_written_through_links_that_lie_beside_a_log(tmp_path, worded):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    folder = tmp_path / "from a stranger"
    folder.mkdir()
    path = folder / "w8.h5"
    path.write_bytes(Path(GOOD).read_bytes()[:-200])
    assert repair(str(path)).kept["trials"] == 7 and not path.is_symlink()
    merge([str(path)], str(folder / "new.h5"))
    put_file(str(folder / "report.html"), "page")
    (folder / "new.h5.tmp").symlink_to(kept)
    SafeFile(str(folder / "new.h5.tmp")).close()
    (folder / "w8.h5.lock").symlink_to(kept)
    with worded.error(LogError):
        Lock.take(str(path))
    assert holder(str(path)) is None and kept.read_text() == "precious"


def test_what_is_fetched_or_kept_of_data_sets_is_not_written_through_links(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    (tmp_path / "receipt").symlink_to(kept)
    fetch._write([io.BytesIO(b"images")], tmp_path / "t10k")
    write_whole(tmp_path / "receipt", "{}")
    assert (tmp_path / "t10k").read_text() == "images" and (tmp_path / "receipt").read_text() == "{}"
    assert not (tmp_path / "receipt").is_symlink() and kept.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["kept", "receipt", "t10k"]


@pytest.mark.parametrize("pack", [bz2.compress, gzip.compress, lzma.compress])
def test_what_is_packed_small_is_not_unpacked_at_once(pack):
    size = 32 << 20
    packed = pack(bytes(size) + b"the end") + pack(b" and more")
    tracemalloc.start()
    try:
        with next(opened for magic, opened in OPENERS.items() if packed.startswith(magic))(io.BytesIO(packed)) as file:
            last, found = b"", 0
            while piece := file.read(1 << 16):
                last, found = (last + piece)[-16:], found + len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert last == b"the end and more" and found == size + 16
    assert peak < 16 << 20


EVIL = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m"


def test_names_do_not_steer_the_terminal(tmp_path):
    path = tmp_path / f"a{EVIL}.h5"
    save(made_log(*(trial(id, dataset=EVIL, seed=id, stop_reason=EVIL) for id in range(2))), path)
    broken = tmp_path / "b\udcff.h5"
    broken.write_text("no log")
    commands = [(log.main, "ls", path), (log.main, "show", path), (log.main, "show", path, "--trial", 1, "--plan"),
                (log.main, "check", path, broken), (report.main, path, broken, "--skip-broken"),
                (report.main, path, "--target", f"val/{EVIL}<1")]
    for command in commands:
        shown = said(*command)
        assert "evil" in shown and printable(shown) == shown, command
    assert printable("é\t\n\x1b\u202e\udcff") == "é\t\n\\x1b\\u202e\\udcff"
    assert printable("a\tb\n", lines=False) == "a\\tb\\n"


def test_every_control_and_format_character_is_shown_as_an_escape_on_the_terminal_and_the_page(tmp_path):
    hidden = "".join(letter for letter in map(chr, range(sys.maxunicode + 1))
                     if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") and letter not in "\n\t\0")
    assert len(hidden) > 200 and printable(hidden).isascii() and printable(f"x{hidden}\ufe0f\u3164", False).isascii()
    save(made_log(trial(0, dataset=f"evil{hidden}")), tmp_path / "w.h5")
    shown = [said(log.main, "ls", tmp_path / "w.h5"), said(log.main, "show", tmp_path / "w.h5"),
             said(report.main, tmp_path / "w.h5", "--out", tmp_path / "out", "--format", "html"),
             (tmp_path / "out/report.html").read_text()]
    for text in shown:
        assert "evil" in text and not set(hidden) & set(text)


def test_reasons_and_names_do_not_steer_the_terminal_of_those_that_are_at_work():
    said, now = io.StringIO(), iter([0.0, 1e3])
    SweepDisplay(None, terminal=False, out=said).say(EVIL)
    bar = Bar(said, lambda: next(now))
    bar.say(EVIL)
    bar.progress(EVIL, 1, 2)
    bar.progress(EVIL, 2, 2)
    assert said.getvalue().count("evil") == 3 and printable(said.getvalue()) == said.getvalue()


FORMULAS = ("=HYPERLINK(1)", "@SUM(1)", "+cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!A0", "\t=1", "'=1", "''=1")


def test_no_cell_of_a_table_is_a_formula_and_tables_are_read_as_they_were(tmp_path):
    for text in ("", "-", "-1.5e-3", "+3", "digits", "'quoted'", "- none", '{"a": "=1"}'):
        assert as_cell(text) == of_cell(text) == text
    for text in FORMULAS:
        assert as_cell(text) == f"'{text}" and of_cell(as_cell(text)) == text
    trials = [trial(at, dataset=text, status=Status.INCOMPLETE, stop_reason="so it was")
              for at, text in enumerate(FORMULAS)]
    path = save(made_log(*trials), tmp_path / "made.h5")
    exported.export_tables(path, tmp_path / "tables")
    with open(tmp_path / "tables/trials.csv", encoding="utf-8", newline="") as file:
        assert all(cell[:1] not in ("=", "@", "+", "\t") for row in csv.reader(file) for cell in row)
    import_tables(tmp_path / "tables", tmp_path / "again.h5")
    with read_log(tmp_path / "again.h5") as found:
        assert found.trials["dataset"].tolist() == list(FORMULAS)


def test_files_of_a_report_stay_in_its_folder(tmp_path):
    names = ("../../x", "/etc/x", "a/../../b", "..", "\0", "n" * 5000, "x\n", "$(touch sprung)", "`touch sprung`")
    made = [trial(id, dataset=name, model=name, optimizer=name, seed=id) for id, name in enumerate(names)]
    path = save(made_log(*made), tmp_path / "made.h5")
    out = tmp_path / "within" / "out"
    assert "wrote" in said(report.main, path, "--out", out, "--format", "html,json,csv")
    assert {child.name for child in tmp_path.iterdir()} == {"made.h5", "within"}
    assert [child.name for child in (tmp_path / "within").iterdir()] == ["out"]
    assert {child.name for child in out.iterdir()} <= {"report.html", "report.json", "tables", "figures"}
    json.loads((out / "report.json").read_text())
