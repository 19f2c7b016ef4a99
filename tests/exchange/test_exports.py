"""Exports of a log as Parquet and as TensorBoard's event files, each read back by its package's own reader."""
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from tests.conftest import command_environment, small_disk
from tests.exchange.test_tables_and_rcp import LOGS, call
from tests.factories.archives import write_big_log
from tests.factories.log_files import begin, evaluation, finished, open_log, step

needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")


def parquet_of(path, folder):
    """{table: its pyarrow.Table} of the log's export."""
    reader = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install '.[parquet]'")
    assert call("export", path, folder, "--as", "parquet")[0] == 0
    return {name.removesuffix(".parquet"): reader.read_table(folder / name) for name in os.listdir(folder)}


@pytest.mark.parametrize("make", LOGS.values(), ids=LOGS)
def test_parquet_holds_all_that_the_log_holds(make, tmp_path, monkeypatch):
    monkeypatch.setattr("hvdscale.exchange.exported.GROUP", 70)
    path = make(tmp_path / "log.h5")
    tables = parquet_of(path, tmp_path / "parquet")
    with read_log(path) as log:
        assert set(tables) == {table.name for table in log.tables}
        for table in log.tables:
            written = tables[table.name]
            assert written.column_names == list(table) and written.num_rows == table.rows
            assert json.loads(written.schema.metadata[b"hvdscale"]) == log.attributes
            for name, spec in table.specs.items():
                values, about = written[name].to_pylist(), written.schema.field(name).metadata
                assert (about[b"unit"].decode(), about[b"meaning"].decode()) == (spec.unit, spec.meaning)
                if spec.type == "float":
                    np.testing.assert_array_equal(np.array(values, float), table[name])
                else:
                    wanted = table[name].tolist()
                    assert values == ([Status(one).name for one in wanted] if spec.type == "status" else wanted)


def RunToTarget(folder):
    """TensorBoard's own reader of a run."""
    from tensorboard.backend.event_processing import event_accumulator as module
    reader = module.EventAccumulator(str(folder), size_guidance={module.SCALARS: 0})
    reader.Reload()
    return reader


@needs_tensorboard
def test_every_trial_is_a_run_with_its_scalars_by_step(tmp_path):
    path = finished(tmp_path / "log.h5", 200, 3)
    code, said = call("export", path, tmp_path / "tb", "--as", "tensorboard")
    assert code == 0 and said.endswith("tb: 3 runs, 1,926 scalars\n"), said
    assert sorted(os.listdir(tmp_path / "tb")) == [f"w2-b32-trial{trial}" for trial in range(3)]
    with read_log(path) as log:
        for trial in range(3):
            reader = RunToTarget(tmp_path / f"tb/w2-b32-trial{trial}")
            assert set(reader.Tags()["scalars"]) == {
                "val/error", "evaluations/train_seconds", "steps/loss", "steps/lr", "steps/step_seconds"}
            for tag, table, column in (("val/error", log.evaluations, "val/error"), ("steps/loss", log.steps, "loss"),
                                       ("steps/step_seconds", log.steps, "step_seconds")):
                events = reader.Scalars(tag)
                assert [event.step for event in events] == table.of_trial("step", trial).tolist()
                assert [event.value for event in events] == table.of_trial(column, trial).astype(np.float32).tolist()
            times = [event.wall_time for event in reader.Scalars("val/error")]
            assert times == pytest.approx(1.7e9 + log.evaluations.of_trial("train_seconds", trial))
            assert [event.wall_time for event in reader.Scalars("steps/loss")] == pytest.approx(
                1.7e9 + 0.01 * np.arange(1, 201))


@needs_tensorboard
def test_metaparameters_are_hparams(tmp_path):
    assert call("export", finished(tmp_path / "log.h5"), tmp_path / "tb", "--as", "tensorboard")[0] == 0
    from tensorboard.plugins.hparams import metadata
    found = RunToTarget(tmp_path / "tb/w2-b32-trial0").PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG])
    values = {name: value.string_value or value.number_value for name, value in start.hparams.items()}
    assert values == {"dataset": "digits", "model": "fc", "optimizer": "sgd", "global_batch": 32, "workers": 2,
                      "seed": 0, "learning_rate": pytest.approx(0.1)}
    assert start.start_time_secs == 1.7e9


@needs_tensorboard
def test_what_was_not_measured_is_no_scalar(tmp_path):
    log = open_log(tmp_path / "nan.h5")
    begin(log)
    for number, error in enumerate([0.5, np.nan, 0.25]):
        evaluation(log, number, error=error)
    step(log, 1)
    log.set_status(0, Status.INFEASIBLE, "diverged")
    log.finish()
    assert call("export", tmp_path / "nan.h5", tmp_path / "nan", "--as", "tensorboard")[0] == 0
    reader = RunToTarget(tmp_path / "nan/w2-b32-trial0")
    assert [(event.step, event.value) for event in reader.Scalars("val/error")] == [(0, 0.5), (2, 0.25)]
    assert "train/error" not in reader.Tags()["scalars"]


@needs_tensorboard
def test_a_log_without_starts_or_trials_is_exported(tmp_path):
    write_big_log(tmp_path / "imported.h5", 1, 3, 100)
    open_log(tmp_path / "empty.h5").finish()
    for name, runs in (("imported", 3), ("empty", 0)):
        code, said = call("export", tmp_path / f"{name}.h5", tmp_path / name, "--as", "tensorboard")
        assert code == 0 and len(os.listdir(tmp_path / name)) == runs, said


@pytest.mark.parametrize("kind, package", [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
def test_without_its_package_an_export_is_one_error_and_leaves_nothing(tmp_path, monkeypatch, kind, package):
    path = finished(tmp_path / "log.h5")
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    code, said = call("export", path, tmp_path / "out", "--as", kind)
    assert code == 2 and f"--as {kind} needs {package}, " in said and f"pip install {package}" in said
    assert os.listdir(tmp_path) == ["log.h5"]


@pytest.mark.parametrize("kind, package", [
    ("parquet", "pyarrow"), ("tensorboard", "tensorboard"), ("csv", "numpy"), ("archive", "numpy")])
def test_an_export_that_cannot_be_written_leaves_nothing(tmp_path, kind, package):
    pytest.importorskip(package, reason=f"needs {package}")
    path = finished(tmp_path / "log.h5")
    (tmp_path / "taken").touch()
    code, said = call("export", path, tmp_path / "taken", "--as", kind)
    assert code == 1 and "taken: exists already" in said
    code, said = call("export", path, tmp_path / "taken" / "below", "--as", kind)
    assert code == 1 and "cannot be written" in said and sorted(os.listdir(tmp_path)) == ["log.h5", "taken"]


@pytest.mark.parametrize("kind, package", [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
def test_an_export_to_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, kind, package):
    pytest.importorskip(package, reason=f"needs {package}")
    path = finished(tmp_path / "log.h5", 300)
    with small_disk(tmp_path / "disk", "8k") as disk:
        code, said = call("export", path, disk / "out", "--as", kind)
        assert code == 1 and os.listdir(disk) == []
        assert re.fullmatch(r"Error: \S+: cannot be written: .*No space left on device\n", said)


@needs_tensorboard
def test_event_files_are_written_without_a_training_package(tmp_path):
    code = ("import sys; from hvdscale.cli.log import main; main(sys.argv[1:], standalone_mode=False); "
            "print(*{'torch', 'tensorflow', 'horovod', 'pandas'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code, "export", finished(tmp_path / "log.h5"), tmp_path / "tb", "--as",
                           "tensorboard"], capture_output=True, text=True, env=command_environment())
    assert done.stdout.endswith("scalars\n\n"), done.stderr
