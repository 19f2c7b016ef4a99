"""hvdscale.read: logs, reports and figures as values for notebooks."""
import copy
import re
import shutil
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

import hvdscale
from hvdscale.errors import LogError, UsageError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import KNOWN, Status
from hvdscale.report.pages import make
from hvdscale.report.runs import LazyMapping
from tests import guides
from tests.conftest import ROOT
from tests.factories.logs import log, save, study, trial

GUIDE = "hvdscale/report/README.rst"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of the logs of four worker counts."""
    folder = tmp_path_factory.mktemp("runs")
    for workers, made in study().items():
        save(made, folder / f"w{workers}.h5")
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return hvdscale.read(folder)


@pytest.fixture(scope="module")
def report(runs):
    return runs.report()


@pytest.mark.parametrize("code, absent", [("import hvdscale", {"numpy", "h5py", "torch"}), (
    "import hvdscale; hvdscale.read(sys.argv[1]).report()", {"torch", "horovod", "mpi4py", "pandas", "matplotlib"})])
def test_importing_hvdscale_loads_no_numpy_and_reading_no_torch(run, code, absent):
    code = f"import sys; {code}; print(*{absent} & set(sys.modules))"
    assert run(sys.executable, "-c", code, ROOT / "tools/readme/mnist.h5").stdout == "\n"


def test_the_package_lists_what_it_offers_and_refuses_the_rest():
    assert {"read", "HvdscaleError", "__version__"} <= set(dir(hvdscale))
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        hvdscale.reed


def test_a_folder_a_pattern_a_path_and_a_list_are_read_alike(folder):
    paths = sorted(folder.glob("*.h5"))
    for given in (folder, str(folder), f"{folder}/w?.h5", paths, list(map(str, paths)), [folder, paths[0]]):
        assert [one.path for one in hvdscale.read(given).logs] == list(map(str, paths))
    assert [one.path for one in hvdscale.read(paths[0]).logs] == [str(paths[0])]


def test_the_commands_take_a_pattern_too_and_the_name_of_a_file_is_none(tmp_path, capsys):
    made = save(log(trial()), tmp_path / "w[1].h5")
    for given in (made, f"{tmp_path}/*.h5"):
        make([given])
        assert "val/error<0.2" in capsys.readouterr().out


@pytest.mark.parametrize("given, message", [
    ("none*.h5", r"none\*.h5: there is no such log, and no file matches it as a pattern"),
    ("none.h5", "none.h5: there is no such log"), ([], "no logs .* an empty list of paths"), (".", "no logs")])
def test_what_cannot_be_read_is_an_error_with_the_words_of_the_commands(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogError, match=message):
        hvdscale.read(given)


def test_a_broken_log_is_refused_or_skipped_and_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    (tmp_path / "runs" / "w2.h5").write_bytes(b"\x89HDF\r\n\x1a\n cut")
    with pytest.raises(LogError, match=r"w2.h5[^\n]*\n.*skip_broken=True"):
        hvdscale.read(tmp_path / "runs")
    runs = hvdscale.read(tmp_path / "runs", skip_broken=True)
    assert len(runs.logs) == 3 and "w2.h5" in runs.skipped[0] and "w2.h5" in runs._repr_html_()


def test_columns_of_several_logs_lie_end_to_end(folder, runs):
    logs = [read_log(path) for path in sorted(folder.glob("*.h5"))]
    for name in ("trials", "restarts", "evaluations", "steps"):
        frame = getattr(runs, name)
        assert frame.columns[0] == "log" and set(frame) - {"log"} == {c for one in logs for c in getattr(one, name)}
        for column in set(frame) - {"log", "status"}:
            wanted = np.concatenate([getattr(one, name)[column] for one in logs])
            np.testing.assert_array_equal(frame[column], wanted)
        assert len(frame["log"]) == frame.rows == sum(getattr(one, name).rows for one in logs)
    assert runs.trials["status"].tolist() == ["COMPLETE"] * 12
    assert runs.trials["log"].tolist() == [one.path for one in logs for _ in range(3)]
    assert runs.evaluations.units["train_seconds"] == "seconds"
    assert runs.evaluations.meanings["step"] == KNOWN["evaluations"]["step"].meaning


def test_a_column_that_some_logs_lack_is_missing_in_their_rows_and_a_status_is_its_name(tmp_path):
    save(log(*(trial(at, status=status, steps=(0, 1)) for at, status in enumerate(Status))), tmp_path / "a.h5")
    save(log(trial(steps=(0, 1), error=(0.25, 0.5)), metric="test/error"), tmp_path / "b.h5")
    with hvdscale.read(tmp_path) as runs:
        values, status = runs.evaluations["test/error"], runs.trials["status"]
    assert np.isnan(values[:-2]).all() and values[-2:].tolist() == [0.25, 0.5]
    assert status.tolist() == [*(one.name for one in Status), "COMPLETE"]
    assert runs.trials["status"] is status, "arrays stay when the logs are closed"


def test_columns_make_a_structured_array_and_a_frame(runs):
    rows = runs.evaluations.to_numpy(["trial", "val/error"])
    assert rows.dtype.names == ("trial", "val/error") and rows.shape == (runs.evaluations.rows,)
    np.testing.assert_array_equal(rows["val/error"], runs.evaluations["val/error"])
    assert runs.trials.to_numpy().dtype.names == runs.trials.columns and "12 trials in 4 logs" in repr(runs)
    pytest.importorskip("pandas")
    frame = runs.evaluations.to_pandas()
    assert list(frame) == list(runs.evaluations) and (frame["val/error"] == runs.evaluations["val/error"]).all()
    assert list(runs.trials.to_pandas(["id", "status"])) == ["id", "status"]


@pytest.mark.parametrize("ask", [
    lambda table: table.head(), lambda table: len(table), lambda table: table[table["id"] > 0],
    lambda table: pytest.importorskip("pandas").DataFrame(table), np.asarray])
def test_what_a_frame_does_otherwise_is_refused_with_the_way_to_one(ask, runs, worded):
    with worded.error((UsageError, AttributeError, TypeError)):
        ask(runs.trials)
    assert copy.copy(runs.trials).rows == runs.trials.rows


def test_a_name_that_there_is_not_is_an_error_that_lists_those_there(runs, report):
    for ask in (lambda: runs.trials["worker"], lambda: runs.trials.to_numpy(["worker"]), lambda: report.tables["weak"],
                lambda: report.figures["weak"]):
        with pytest.raises(hvdscale.HvdscaleError) as raised:
            ask()
        assert isinstance(raised.value, KeyError) and re.match(
            "trials have no column 'worker'; there are log, id|(table|figure) 'weak': none of that name; choose one of",
            str(raised.value))


def test_the_end_of_a_name_will_do_where_one_ends_so(worded):
    found = LazyMapping("table", {"a-seconds": lambda: 1, "b-seconds": lambda: 2, "a-steps": lambda: 3,
                                  "steps": lambda: 4})
    assert [found[name] for name in ("a-seconds", "b-seconds", "a-steps", "steps")] == [1, 2, 3, 4]
    assert "seconds" not in list(found) and found.get("a-steps") == 3 and found.get("none") is None
    with worded.error(UsageError):
        found["seconds"]


@pytest.mark.parametrize("asked, message", [
    ({"targets": "val/eror<0.1"}, "no log has val/eror"), ({"targets": ["x"]}, "is not split/metric"),
    ({"confidence": 2}, "confidence 2: lies between"), ({"rule_within": "x"}, "rule_within x: is a share"),
    ({"perfect_within": 10}, "this is 1000%"), ({"trials": 0}, "trials 0: is a number of trials"),
    ({"budgets": "10 parsecs"}, "'10 parsecs' is not"), ({"compare": "nobody2020"}, "no such publication")])
def test_a_value_that_means_nothing_is_refused_by_its_name(runs, asked, message):
    with pytest.raises(UsageError, match=message):
        runs.report(**asked)


def test_the_report_says_what_the_command_prints(folder, runs, report):
    printed = []
    make([folder], whole=True, echo=printed.append)
    assert str(report) == "\n".join(printed) and all(said in str(report) for said in report.verdict[:1])
    document = report.values()
    assert {found["target"] for found in report.findings} == {"val/error<0.02"}
    assert any(isinstance(found["value"], float) and found["low"] <= found["value"] for found in report.findings)
    assert [(found["said"], found["kind"], found["values"]) for found in report.findings] == [
        (found["said"], found["kind"], found["values"]) for group in document["workloads"]
        for section in group["sections"] for found in section["findings"]]
    assert any(found["kind"] and found["values"] for found in report.findings)
    one, both = runs.report("val/error<0.1"), runs.report(["val/error<0.1", "val/error<0.02"], confidence=0.5)
    assert len(both.tables) > len(one.tables) and both.document.confidence == 0.5


def test_records_are_the_rows_of_the_csv_files(report, tmp_path):
    pandas = pytest.importorskip("pandas")
    files = {path.rpartition("/")[2]: path for path in report.write(tmp_path, ("csv",))}
    assert set(files) == {f"{name}.csv" for name in report.tables}
    for name, table in report.tables.items():
        kept, frame = pandas.read_csv(files[f"{name}.csv"]), table.to_pandas()
        assert list(kept) == list(frame) and len(kept) == len(frame) == len(table)
        for column in set(kept) - {"trials"}:
            values = frame[column].fillna(np.nan) if kept[column].dtype.kind == "f" else frame[column]
            assert [str(value) for value in kept[column]] == [str(value) for value in values], column


def test_a_record_has_its_value_interval_and_trials(report, runs):
    row = report.tables["weak-32"].records()[1]
    assert (row["workers"], row["global_batch"], row["target"]) == (2, 64, "val/error<0.02")
    assert row["steps_to_target_low"] < row["steps_to_target"] < row["steps_to_target_high"]
    known = set(zip(runs.trials["log"], runs.trials["id"]))
    assert len(row["trials"]) == 3 and set(row["trials"]) <= known
    [workers, *_] = report.tables["weak-32"].columns
    assert workers["key"] == "workers" and "workers" in str(report.tables["weak-32"])


def test_figures_are_matplotlibs_drawn_once_and_may_be_changed(report):
    figure = report.figures["speedup-weak-32"]
    assert isinstance(figure, Figure) and report.figures["speedup-weak-32"] is figure
    before = report.figures._repr_html_()
    figure.axes[0].set_title("changed")
    assert report.figures._repr_html_() == before
    assert [one["name"] for one in report.figures.records()] == list(report.figures)
    assert all(one["caption"] and one["trials"] for one in report.figures.records())


def test_without_pandas_the_error_names_it_and_the_way_without(runs, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for ask in (runs.trials.to_pandas, report.tables["weak-32"].to_pandas):
        with pytest.raises(UsageError, match=r"to_pandas\(\) needs pandas, .*: pip install pandas; .* without it"):
            ask()


def test_all_html_is_escaped(tmp_path):
    evil = "<evil onload=1>"
    save(log(trial(dataset=evil, model=evil, optimizer=evil, stop_reason=evil), metric="val/<evil>"), tmp_path / "a.h5")
    save(log(trial(2, dataset=evil)), tmp_path / f"{evil}.h5")
    (tmp_path / f"{evil} broken.h5").write_bytes(b"no log")
    runs = hvdscale.read(tmp_path, skip_broken=True)
    report = runs.report()
    for one in (runs, runs.trials, runs.evaluations, report, report.figures, *report.tables.values()):
        text = one._repr_html_()
        assert text and "<evil" not in text, text
    for one in (runs, runs.trials, runs.evaluations, report):
        assert "&lt;evil" in one._repr_html_()
    assert "&lt;evil onload=1&gt; broken.h5" in runs._repr_html_()


def test_a_long_table_shows_its_ends(tmp_path):
    save(log(trial(steps=range(100), error=[0.5] * 100)), tmp_path / "a.h5")
    text = hvdscale.read(tmp_path).evaluations._repr_html_()
    assert "evaluations: 100 rows" in text and "90 more rows" in text and text.count("<tr>") == 12


@pytest.fixture
def readme_log(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    shutil.copy(ROOT / "tools/readme/mnist.h5", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)


def test_the_guides_code_runs(readme_log):
    plain, frames = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", guides.read(GUIDE))
    names = {}
    exec(re.sub(r"^    ", "", plain, flags=re.M), names)
    assert names["figure"].axes and len(names["report"].findings) > 3
    pytest.importorskip("pandas")
    exec(re.sub(r"^    ", "", frames, flags=re.M), names)
    assert len(names["evaluations"]) == names["runs"].evaluations.rows


@pytest.mark.slow
def test_the_notebook_of_the_examples_runs(readme_log, tmp_path, run):
    printed = run(sys.executable, ROOT / "tools/examples/notebook.py").stdout
    assert "runs/mnist.h5, trial 0: val/error" in printed and "Fastest: 2 workers" in printed
    assert len(list(tmp_path.glob("*-speedup-weak-32.pdf"))) == 1
