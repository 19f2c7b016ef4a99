"""The published archive's layout, in and out: nothing is lost, nothing is left behind, strangers' files do no harm."""
import bz2
import csv
import gzip
import io
import json
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hvdscale.analysis.trials import read_trials
from hvdscale.errors import LogError
from hvdscale.exchange.archive import sources
from hvdscale.exchange.archive.read import import_archive
from hvdscale.exchange.archive.export import export_archive
from hvdscale.log.check import check
from hvdscale.log.merge import merge, new_log
from hvdscale.log.reader import read_log
from hvdscale.log.schema import UNKNOWN_SEED, Status
from tests.factories.archives import published_json, write_archive, write_text
from tests.factories.logs import log as made_log
from tests.factories.logs import save
from tests.factories.logs import trial as made_trial
from tests.wording import answered

PLACE = "mnist/simple_cnn_base/sgd/32"
STUDY = {"batch_size": 32, "dataset": "mnist", "model": "simple_cnn_base", "optimizer": "sgd", "early_stopping": False,
         "parameter_configs": {"learning_rate": {"type": "DOUBLE", "scale": "LOG_SCALE", "min_value": 0.1,
                                                 "max_value": 1.0}}, "train_steps": 100}
MEASURED = "step,val/classification_error\n0,0.9\n50,0.5\n100,0.25\n"

NAN = float("nan")            # one object, so that lists with it are equal


def metadata(trial, **changes):
    return {"trial_id": trial, "status": "COMPLETE", "steps": 100, "parameters": {"learning_rate": 0.5}, **changes}


def small(root, trials=(1, 2, 10), study=STUDY, place=PLACE, measured=MEASURED):
    """An archive of one study, as a folder; gives the study's."""
    folder = root / place
    folder.mkdir(parents=True)
    write_text(folder / "study.json", json.dumps(study))
    for trial in trials:
        (folder / str(trial)).mkdir()
        write_text(folder / str(trial) / "metadata.json", json.dumps(metadata(trial)))
        write_text(folder / str(trial) / "measurements.csv", measured)
    return folder


def imported(tmp_path):
    """The log of the archive, which passes its check."""
    import_archive(tmp_path / "archive", tmp_path / "log.h5")
    return check(tmp_path / "log.h5")


def back_and_forth(root, tmp_path):
    """The logs of an archive and of the export of its import."""
    import_archive(root, tmp_path / "log.h5")
    export_archive(tmp_path / "log.h5", tmp_path / "back")
    import_archive(tmp_path / "back", tmp_path / "again.h5")
    return tmp_path / "log.h5", tmp_path / "again.h5"


@pytest.mark.parametrize("full", [False, True])
def test_an_export_of_an_import_has_the_same_values(full, tmp_path):
    write_archive(tmp_path / "archive", 5, 60, 3000, full=full)
    before, after = back_and_forth(tmp_path / "archive", tmp_path)
    same_trials(before, after)
    check(str(after))
    assert read_slowly(tmp_path / "back") == read_slowly(tmp_path / "archive")


def read_slowly(root):
    """{folder of a trial: (metadata, step, {column: values})}, by the plainest means."""
    found = {}
    for place, _, names in os.walk(root):
        if "metadata.json" in names:
            rows = list(csv.reader(Path(place, "measurements.csv").read_text().splitlines()))
            step = [int(row[0]) for row in rows[1:]]
            values = {name: [float(row[at]) if row[at] else NAN for row in rows[1:]]
                      for at, name in enumerate(rows[0]) if at}
            found[os.path.relpath(place, root)] = json.loads(Path(place, "metadata.json").read_text()), step, values
    return found


def test_evaluations_of_a_study_lie_together_in_the_published_order(tmp_path):
    small(tmp_path / "archive", trials=(10, 9, 101, 2))
    small(tmp_path / "archive", place="mnist/simple_cnn_base/sgd/8", study={**STUDY, "batch_size": 8})
    small(tmp_path / "archive", place="cifar_10/resnet_8/sgd/32")
    log = imported(tmp_path)
    assert log.trials["source_trial"].tolist() == [1, 2, 10, 1, 2, 10, 2, 9, 10, 101]
    assert log.trials["dataset"].tolist() == ["cifar_10"] * 3 + ["mnist"] * 7
    assert log.trials["global_batch"].tolist() == [32] * 3 + [8] * 3 + [32] * 4
    assert log.trials["id"].tolist() == list(range(10)) == np.unique(log.evaluations["trial"]).tolist()
    assert log.evaluations["trial"].tolist() == np.repeat(range(10), 3).tolist()
    assert log.trials["seed"].tolist() == [UNKNOWN_SEED] * 10


def test_names_are_this_projects(tmp_path):
    parameters = {"learning_rate": 0.5, "end_learning_rate_factor": 0.01, "learning_rate_decay_steps": 70, "dropout": 1}
    folder = small(tmp_path / "archive", (1,), measured="step,val/cross_entropy_error,val/average_precision\n"
                                                        "100,1.5,0.25\n")
    write_text(folder / "1" / "metadata.json", json.dumps(metadata(1, parameters=parameters)))
    log = imported(tmp_path)
    assert {name.partition("/")[2]: log.trials[name][0] for name in log.trials if name.startswith("metap")} == {
        "learning_rate": 0.5, "end_lr_factor": 0.01, "decay_steps": 70, "dropout": 1}
    assert {name: log.evaluations[name].tolist() for name in log.evaluations if "/" in name} == {
        "val/cross_entropy": [1.5], "val/average_precision": [0.25]}
    assert log.evaluations.specs["val/cross_entropy"].better == "smaller"
    assert log.evaluations.specs["val/average_precision"].better == "larger"
    assert log.evaluations["examples"].tolist() == [3200] and "COMPLETE" in log.trials["stop_reason"][0]
    plan = json.loads(log.trials["plan"][0])
    assert plan["archive"]["study"] == STUDY and plan["archive"]["path"] == PLACE
    assert plan["measurement"]["budget_steps"] == 100 == log.trials["budget_steps"][0]


def test_a_metric_under_both_names_stays_two(tmp_path):
    small(tmp_path / "archive", (1,), measured="step,val/error,val/classification_error\n100,0.5,0.25\n")
    for log in back_and_forth(tmp_path / "archive", tmp_path):
        with read_log(log) as read:
            assert (read.evaluations["val/error"][0], read.evaluations["val/classification_error"][0]) == (0.5, 0.25)


ODDLY_WRITTEN = {       # a text, and what it says by column
    "digits": ("step,val/error\n0,0.10\n1,1e-3\n2,+0.5\n3,.5\n4,1\n5,0.1234567890123456789\n6,00.5\n7,1E5\n",
               {"step": range(8), "val/error": [0.1, 1e-3, 0.5, 0.5, 1, 0.1234567890123456789, 0.5, 1e5]}),
    "gaps": ("step,val/error\n0,nan\n1,NaN\n2,\n3,-nan\n4,0.5\n", {"val/error": [NAN] * 4 + [0.5]}),
    "infinite": ("step,val/error\n0,inf\n1,-inf\n2,Infinity\n", {"val/error": [np.inf, -np.inf, np.inf]}),
    "order": ("val/error,test/error,step,train/error\n0.5,0.25,0,0.125\n,0.5,3,\n",
              {"val/error": [0.5, NAN], "test/error": [0.25, 0.5], "step": [0, 3], "train/error": [0.125, NAN]}),
    "nothing measured": ("step,val/error\n", {"step": []}),
    "no metric": ("step\n0\n10\n", {"step": [0, 10]}),
}


@pytest.mark.parametrize("text, said", ODDLY_WRITTEN.values(), ids=ODDLY_WRITTEN)
def test_what_is_written_otherwise_is_read_and_comes_back_as_values(text, said, tmp_path):
    folder = small(tmp_path / "archive", measured=text)
    for trial in (1, 10):
        write_text(folder / str(trial) / "metadata.json", json.dumps(metadata(trial, status="INCOMPLETE")))
    write_text(folder / "2" / "measurements.csv", MEASURED)
    write_text(folder / "2" / "metadata.json", published_json(metadata(2, note=["ü", None], trials=1e300)))
    write_text(folder / "study.json", published_json({**STUDY, "more": {"a": [1, 2.50]}}) + "\n\n")
    for path in back_and_forth(tmp_path / "archive", tmp_path):
        with read_log(path) as log:
            for name, values in said.items():
                np.testing.assert_array_equal(log.evaluations.of_trial(name, 0), list(values))
            assert json.loads(log.trials["metadata"][1])["note"] == ["ü", None]
            assert json.loads(log.trials["plan"][0])["archive"]["study"] == {**STUDY, "more": {"a": [1, 2.5]}}


def test_trials_of_a_study_are_no_repeats_of_each_other(tmp_path):
    folder = small(tmp_path / "archive")
    for trial, rate in ((2, 0.25), (10, 0.5)):
        write_text(folder / str(trial) / "metadata.json", json.dumps(metadata(
            trial, parameters={"learning_rate": rate, "learning_rate_decay_steps": 70})))
    log = imported(tmp_path)
    trials = read_trials(log)
    assert len({trial.setting for trial in trials}) == 3
    assert {trial.workload.train_examples for trial in trials} == {55000}
    assert all(np.isnan(trial.train_seconds).all() for trial in trials)


def test_two_folders_of_a_dataset_are_its_name(tmp_path):
    for place in (PLACE, f"solution_quality/{PLACE}", f"batch_science/mnist_subsets/{PLACE}"):
        small(tmp_path / "archive", (1,), place=place)
    log = imported(tmp_path)
    assert sorted(log.trials["dataset"]) == ["mnist", "mnist_subsets/mnist", "solution_quality/mnist"]


@pytest.mark.parametrize("within", ["", "mnist", "mnist/simple_cnn_base", "mnist/simple_cnn_base/sgd", PLACE])
def test_a_part_of_an_archive_is_one(within, tmp_path):
    small(tmp_path / "archive")
    import_archive(tmp_path / "archive" / within, tmp_path / "log.h5")
    with read_log(tmp_path / "log.h5") as log:
        assert json.loads(log.trials["plan"][0])["archive"]["path"] == PLACE
        assert (log.trials["dataset"][0], log.trials["model"][0]) == ("mnist", "simple_cnn_base")


def same_trials(a, b):
    """Whether two logs say the same, but for where they were imported from."""
    with read_log(a) as one, read_log(b) as two:
        for left, right in zip(one.tables, two.tables):
            assert left.specs == right.specs
            for name in left:
                np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.mark.parametrize("ending, how", [
    ("tar", "archive"), ("tar.gz", "."), ("tar.bz2", "archive"), ("tar.xz", "mnist"), ("tar", "batch_science")])
def test_a_tar_file_is_read_without_unpacking_it(ending, how, tmp_path):
    root = tmp_path / ("batch_science" if how == "batch_science" else "archive")
    small(root)
    small(root, place="mnist/simple_cnn_base/sgd/64", study={**STUDY, "batch_size": 64}, trials=(7,))
    inside = root if how in (".", "mnist") else tmp_path
    subprocess.run(["tar", "--sort=name", "-caf", tmp_path / f"a.{ending}", "-C", inside, how], check=True)
    import_archive(root, tmp_path / "folder.h5")
    import_archive(tmp_path / f"a.{ending}", tmp_path / "tar.h5")
    same_trials(tmp_path / "folder.h5", tmp_path / "tar.h5")


@pytest.mark.parametrize("pack", [bz2.compress, gzip.compress, lzma.compress])
@pytest.mark.parametrize("filler", [b"", bytes(512)])
def test_a_tar_file_packed_in_parts_is_read_to_its_end(pack, filler, tmp_path):
    """As pbzip2 and pigz pack it; a part may end anywhere in what is read at once, and zeros fill up a tape."""
    whole = tar_of(tmp_path / "a.tar", STUDY_MEMBER, *members(1), *members(2)).read_bytes()
    (tmp_path / "b.tar").write_bytes(b"".join(pack(whole[at:at + 1000]) for at in range(0, len(whole), 1000)) + filler)
    assert import_archive(tmp_path / "b.tar", tmp_path / "log.h5").trials == 2


def tar_of(path, *members):
    """A tar file with these members in order: (name, text), or a TarInfo."""
    with tarfile.open(path, "w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            name, text = member
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def members(trial, place=PLACE):
    return [(f"{place}/{trial}/measurements.csv", MEASURED),
            (f"{place}/{trial}/metadata.json", json.dumps(metadata(trial)))]


STUDY_MEMBER = (f"{PLACE}/study.json", json.dumps(STUDY))


def test_members_of_a_study_may_come_in_any_order(tmp_path):
    (ten, ten_metadata), (two, two_metadata) = members(10), members(2)
    tar_of(tmp_path / "a.tar", ten, two_metadata, two, STUDY_MEMBER, ten_metadata, ("notes", ""), ("study.json", "{}"))
    seen = import_archive(tmp_path / "a.tar", tmp_path / "log.h5")
    assert read_log(tmp_path / "log.h5").trials["source_trial"].tolist() == [2, 10]
    assert seen.others == [f"{tmp_path}/a.tar: notes", f"{tmp_path}/a.tar: study.json"]


OTHER = PLACE.replace("mnist", "cifar_10")
HEADER = (f"{PLACE}/2/metadata.json".encode(), f"{PLACE}/3/metadata.json".encode())


@pytest.mark.parametrize("more, change, message", [
    ([(f"{OTHER}/study.json", json.dumps(STUDY)), *members(1, OTHER)], (b"", b""),
     f"the files of {PLACE} are not contiguous in it; unpack it"),
    ([], HEADER, "is not a tar file, or is damaged: bad checksum")], ids=["apart", "changed header"])
def test_a_tar_file_that_is_torn_or_changed_is_an_error_even_if_all_wrong_files_are_skipped(
        more, change, message, tmp_path):
    whole = tar_of(tmp_path / "a.tar", STUDY_MEMBER, *members(1), *more, *members(2))
    whole.write_bytes(whole.read_bytes().replace(*change) if change[0] else whole.read_bytes())
    with pytest.raises(LogError, match=f"a.tar: {message}"):
        import_archive(whole, tmp_path / "log.h5", skip_broken=True)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_tar_file_cut_off_between_members_is_an_error(tmp_path):
    whole = tar_of(tmp_path / "a.tar", STUDY_MEMBER, *members(1), *members(2))
    data = whole.read_bytes()
    for length in range(512, len(data), 512):
        whole.write_bytes(data[:length])
        if any(data[length - 512:length]) or length <= 10 * 512:
            with pytest.raises(LogError, match="a.tar: "):
                import_archive(whole, tmp_path / "log.h5")
            assert not (tmp_path / "log.h5").exists()


def test_a_tar_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    name = tarfile.TarInfo("x")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (tmp_path / "a.tar").write_bytes(tar_of(tmp_path / "b.tar", STUDY_MEMBER).read_bytes()[:1024]
                                     + name.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(LogError, match="a.tar: .*a header of 1099511627776 bytes"):
        import_archive(tmp_path / "a.tar", tmp_path / "log.h5")
    monkeypatch.setattr(sources, "LARGEST_STUDY", 200)
    tar_of(tmp_path / "a.tar", STUDY_MEMBER, *members(1), *members(2))
    with pytest.raises(LogError, match=f"{PLACE}: has more than .* GiB.*import the folder"):
        import_archive(tmp_path / "a.tar", tmp_path / "log.h5")


def link(name, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


def packed(member):
    tar_of("a.tar", STUDY_MEMBER, *members(2), member)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_a_tar_file_cut_off_is_an_error(ending, tmp_path):
    small(tmp_path / "archive", trials=range(1, 20), measured=MEASURED + "".join(
        f"{s},{s / 7!r}\n" for s in range(101, 300)))
    subprocess.run(["tar", "-caf", tmp_path / f"a.{ending}", "-C", tmp_path, "archive"], check=True)
    whole = (tmp_path / f"a.{ending}").read_bytes()
    for share in (0.001, 0.3, 0.6):
        (tmp_path / f"a.{ending}").write_bytes(whole[:int(share * len(whole))])
        with pytest.raises(LogError, match=f"a.{ending}: "):
            import_archive(tmp_path / f"a.{ending}", tmp_path / "log.h5")
        assert not (tmp_path / "log.h5").exists()


DEEP = "[" * 200_000
TOP = Path("archive")


def wrong(name, text):
    """An archive with one study of three trials, in which one file is wrong, or None."""
    path = small(TOP) / name
    path.parent.mkdir(exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def put(name, make):
    """An archive with another kind of file of that name."""
    path = small(TOP) / name
    path.unlink()
    make(path)


def test_what_is_wrong_is_named_and_left_out_where_that_is_asked_for(golden, tmp_path, monkeypatch):
    def said(call):
        (here := tmp_path / str(len(os.listdir(tmp_path)))).mkdir()
        monkeypatch.chdir(here)
        eval(call, globals())
        [name] = os.listdir()
        with pytest.raises(LogError) as raised:
            import_archive(name, "log.h5")
        assert os.listdir() == [name]
        refused = str(raised.value)
        try:
            seen = import_archive(name, "log.h5", skip_broken=True)
        except LogError as error:
            assert os.listdir() == [name] and refused.startswith(str(error))
            return f"{refused}\nno trial left"
        with read_log("log.h5") as log:
            assert log.attributes["skipped"] == {"count": len(seen.wrong), "first": seen.wrong}
            whole = log.trials["source_trial"].tolist()
        return "\n".join([refused, *(wrong for wrong in seen.wrong if wrong not in refused), f"left: trials {whole}"])
    golden("archive", answered("archive", said))


def test_what_is_behind_a_link_or_none_of_the_layout_is_left_out_and_named(tmp_path):
    os.rename(small(tmp_path / "archive") / "2", tmp_path / "away")
    write_text(tmp_path / "archive" / PLACE / "notes.txt", "mine")
    (tmp_path / "archive" / PLACE / "2").symlink_to(tmp_path / "away")
    small(tmp_path / "other", place=PLACE.replace("mnist", "a"))
    (tmp_path / "archive/a").symlink_to(tmp_path / "other/a")
    (tmp_path / "archive/loop").symlink_to(tmp_path / "archive")
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    seen = import_archive(tmp_path / "link", tmp_path / "log.h5")
    assert (seen.studies, seen.trials) == (1, 2)
    assert sorted(seen.others) == [f"{tmp_path}/link/{name}" for name in (
        "a (a link)", "loop (a link)", f"{PLACE}/2 (a link)", f"{PLACE}/notes.txt")]


def stranger(tmp_path, **said):
    """The log evil.h5, which says other things of its archive."""
    small(tmp_path / "archive")
    log = imported(tmp_path)
    plan = json.loads(log.trials["plan"][0])
    plan["archive"] |= said
    with new_log(tmp_path / "evil.h5", {}) as out:
        for table in log.tables:
            for name, spec in table.specs.items():
                out.add_column(table.name, spec)
                out.add(table.name, name, [json.dumps(plan)] * table.rows if name == "plan" else table[name])


def test_half_a_character_in_a_study_is_no_crash_of_an_export(tmp_path):
    stranger(tmp_path, study={"a": "\ud800"})
    export_archive(tmp_path / "evil.h5", tmp_path / "out")
    assert json.loads((tmp_path / "out" / PLACE / "study.json").read_text()) == {"a": "\ud800"}


@pytest.mark.parametrize("path", [
    "../../evil/32", "/abs/model/sgd/32", "mnist/../../../32", "mnist/a\nb/sgd/32", "a//b/32", "mnist/.ssh/sgd/32"])
def test_an_export_writes_nowhere_else(path, tmp_path, worded):
    """A log from strangers may say anything of its archive."""
    stranger(tmp_path, path=path)
    before = sorted(os.listdir(tmp_path))
    with worded.error(LogError):
        export_archive(tmp_path / "evil.h5", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == before


def test_merged_archives_are_exported_as_they_were(tmp_path):
    for name, place in (("a", PLACE), ("b", PLACE.replace("mnist", "cifar_10"))):
        small(tmp_path / name, place=place)
        import_archive(tmp_path / name, tmp_path / f"{name}.h5")
    merge([str(tmp_path / "a.h5"), str(tmp_path / "b.h5")], str(tmp_path / "all.h5"))
    check(str(tmp_path / "all.h5"))
    export_archive(tmp_path / "all.h5", tmp_path / "back")
    assert read_slowly(tmp_path / "back") == {**read_slowly(tmp_path / "a"), **read_slowly(tmp_path / "b")}


def test_progress_reaches_the_whole(tmp_path):
    write_archive(tmp_path / "archive", 3, 90, 900)
    shares = []
    import_archive(tmp_path / "archive", tmp_path / "log.h5", progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 2


STOPPED = {"stopped at its target": (made_trial(1, (0, 100, 200), (0.9, 0.5, 0.1), budget=1000),
                                     made_trial(2, (0, 100), (0.9, 0.15), budget=1000)),
           "at other budgets": (made_trial(1, (0, 100, 200), (0.9, 0.5, 0.3), target=""),
                                made_trial(2, (0, 100, 1000), (0.9, 0.5, 0.3), target="")),
           "before its first step": (made_trial(1, (0,), (0.1,)),),
           "only timed": (made_trial(1, (), (), step_seconds=(0.1, 0.1)),)}


@pytest.mark.parametrize("trials", STOPPED.values(), ids=STOPPED)
def test_an_export_reads_back_wherever_a_complete_trial_ended(trials, tmp_path):
    path = save(made_log(*trials), tmp_path / "log.h5")
    export_archive(path, tmp_path / "archive")
    import_archive(tmp_path / "archive", tmp_path / "back.h5")
    before, after = read_log(path), check(tmp_path / "back.h5")
    assert after.trials["source_trial"].tolist() == before.trials["id"].tolist()
    assert (after.trials["status"] == Status.COMPLETE).all()
    for row, id in enumerate(before.trials["id"]):
        for name in ("step", "val/error")[:1 + ("val/error" in after.evaluations)]:
            assert np.array_equal(after.evaluations.of_trial(name, row), before.evaluations.of_trial(name, id))


def test_a_file_cut_off_is_noticed_where_trials_may_stop_early(tmp_path, worded):
    path = save(made_log(made_trial(1, range(0, 201, 50), (0.9, 0.8, 0.7, 0.5, 0.1), budget=1000)), tmp_path / "log.h5")
    export_archive(path, tmp_path / "archive")
    measured = tmp_path / "archive" / "made/net/nesterov/32/1/measurements.csv"
    write_text(measured, "".join(measured.read_text().splitlines(keepends=True)[:-2]))
    with worded.error(LogError):
        import_archive(tmp_path / "archive", tmp_path / "back.h5")
