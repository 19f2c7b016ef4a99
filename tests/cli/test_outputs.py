"""What an output of a command may replace: a log, or a file of its own kind, and never another output."""
import json
import os
import shutil
from types import SimpleNamespace

import h5py
import pytest
from click.testing import CliRunner

import hvdscale
from hvdscale.cli import doctor_script, log, plan, report, scale_script
from hvdscale.errors import CheckpointError, ExitCode, HvdscaleError, LogError, UsageError
from hvdscale.log.files import refuse_taken
from hvdscale.plan.settings import Settings
from hvdscale.system.lock import Lock
from hvdscale.system.outputs import MODEL, PRINTED, refuse_foreign, refuse_shared
from tests.conftest import GOLDEN
from tests.log.test_record import ABOUT

LOG = GOLDEN / "v1.h5"
MINE = "import torch  # my only copy\n"
torch_only = pytest.mark.skipif(not pytest.importorskip("importlib.util").find_spec("torch"), reason="needs torch")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(MINE)
    shutil.copy(LOG, "a.h5")
    hvdscale.record("b.h5", **ABOUT).close()
    os.mkdir("runs")
    (tmp_path / "runs/trials.csv").write_text("id,dataset,model,optimizer,global_batch\n0,a,b,c,32\n")
    (tmp_path / "runs/evaluations.csv").write_text("trial,step,val/error\n0,1,.5\n")


def call(command, *arguments):
    done = CliRunner().invoke(command, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code


COMMANDS = {
    "import": lambda out: call(log.main, "import", "runs", out, "--overwrite"),
    "merge": lambda out: call(log.main, "merge", "a.h5", "b.h5", "--out", out, "--overwrite"),
    "export": lambda out: call(log.main, "export", "a.h5", out, "--as", "csv"),
    "repair": lambda out: call(log.main, "repair", out),
    "record": lambda out: recorded(out),
    "report": lambda out: call(report.main, "a.h5", "--out", out),
    "plan": lambda out: call(plan.main, "a.h5", "--out", out),
    "compare": lambda out: call(report.main, "compare", "a.h5", "a.h5", "--out", out)}


def recorded(out):
    try:
        hvdscale.record(out, **ABOUT, overwrite=True).close()
        return 0
    except HvdscaleError as error:
        return error.exit_code


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_replaces_a_file_that_is_none_of_its_own(command, tmp_path):
    assert COMMANDS[command]("job.py") in (ExitCode.FAILED, ExitCode.USAGE)
    assert (tmp_path / "job.py").read_text() == MINE and not os.path.exists("job.py.lock")


@pytest.mark.parametrize("command, out, name", [
    ("report", "out", "out/report.html"), ("report", "out", "out/report.json"), ("plan", "out", "out/plan.json"),
    ("compare", "out.json", "out.json"), ("compare", "out.csv", "out.csv"), ("import", "out.h5", "out.h5"),
    ("merge", "out.h5", "out.h5"), ("record", "out.h5", "out.h5")])
def test_a_file_of_the_commands_own_kind_is_replaced_and_another_of_the_name_is_not(command, out, name, tmp_path):
    assert COMMANDS[command](out) == 0 and COMMANDS[command](out) == 0
    (tmp_path / name).write_text('{"mine": 1}\n')
    assert COMMANDS[command](out) != 0 and (tmp_path / name).read_text() == '{"mine": 1}\n'


def test_of_hdf5_only_a_log_is_replaced_and_one_that_is_damaged_counts(tmp_path, worded):
    with h5py.File("data.h5", "w") as file:
        file["x"] = [1, 2]
    with worded.error(LogError):
        refuse_taken("data.h5")
    (tmp_path / "damaged.h5").write_bytes(LOG.read_bytes()[:1000])
    for path in ("damaged.h5", "a.h5", "new.h5"):
        refuse_taken(path)
    (tmp_path / "empty.h5").touch()
    refuse_taken("empty.h5")
    os.mkfifo("pipe.h5")
    for path in ("pipe.h5", "runs"):
        with worded.error(LogError):
            refuse_taken(path)


@pytest.mark.parametrize("name", ["poetry.lock", "a.h5.lock", "a pipe.lock"])
def test_the_lock_of_another_program_is_left_as_it_is(name, tmp_path, worded):
    if name == "a pipe.lock":
        os.mkfifo(name)
    else:
        (tmp_path / name).write_text("[[package]]\n")
    with worded.error(LogError):
        Lock.take(name.removesuffix(".lock"))
    assert name == "a pipe.lock" or (tmp_path / name).read_text() == "[[package]]\n"


@torch_only
@pytest.mark.parametrize("options, said", [
    (["--init-from", "pipe"], "pipe: is not a regular file"), (["--checkpoint", "runs"], "outcome: is not a regular")])
def test_a_pipe_is_no_input_of_training(options, said, here):
    os.mkfifo("pipe")
    os.mkdir("runs/outcome")
    done = here("hvdscale-train", "digits/fc", "--steps", "1", *options, check=False)
    assert done.returncode in (ExitCode.FAILED, ExitCode.USAGE) and said in done.stderr


@pytest.mark.parametrize("command", [scale_script.main, doctor_script.resume])
def test_a_pipe_is_no_script(command):
    os.mkfifo("pipe.py")
    assert call(command, "pipe.py", "--out", "out") == ExitCode.USAGE


@torch_only
@pytest.mark.parametrize("keys", [
    {"log": "L.h5", "save_model": "L.h5"}, {"log": "L.h5", "save_model": "runs/../L.h5"},
    {"log": "L.h5", "save_model": "link.h5"}, {"log": "L.h5", "save_model": "L.h5.lock"},
    {"log": "ck", "checkpoint": "ck"}, {"log": "ck/run.lock", "checkpoint": "ck"},
    {"save_model": "ck/step-5.pt", "checkpoint": "ck"}, {"save_model": "runs/../ck/outcome", "checkpoint": "ck"}])
def test_two_outputs_of_a_run_are_never_one_file(keys, worded):
    from hvdscale.training.outputs import refuse_outputs
    from hvdscale.workers.group import SingleWorker
    os.symlink("L.h5", "link.h5")
    os.mkdir("ck")
    with worded.error(UsageError):
        refuse_outputs(Settings.build({}, keys), SingleWorker())
    refuse_outputs(Settings.build({}, {"log": "ck/L.h5", "save_model": "ck/m.pt", "checkpoint": "ck"}), SingleWorker())


@torch_only
def test_a_model_replaces_a_model_alone(tmp_path, worded):
    import torch

    from hvdscale.training.checkpoint import save_weights
    model = torch.nn.Linear(1, 1)
    save_weights(model, "m.pt")
    save_weights(model, "m.pt")
    torch.save(model.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
    refuse_foreign("old.pt", MODEL)
    for path in ("job.py", "a.h5"):
        before = (tmp_path / path).read_bytes()
        with worded.error(CheckpointError):
            save_weights(model, path)
        assert (tmp_path / path).read_bytes() == before


@torch_only
@pytest.mark.parametrize("name", ["tuned.toml", "tuned-adam.toml", "sgd-b32.h5"])
def test_a_sweep_refuses_results_that_are_not_its_own_before_its_first_trial(name, tmp_path, worded):
    from hvdscale.sweep.collect import refuse_foreign_results
    sweep = SimpleNamespace(optimizers=("sgd", "adam"), studies=(SimpleNamespace(name="sgd-b32"),))
    refuse_foreign_results("sweep.toml", ".", sweep)
    (tmp_path / name).write_text("mine = 1\n")
    with pytest.raises(HvdscaleError, match=f"{name}: is not "):
        refuse_foreign_results("sweep.toml", ".", sweep)
    with worded.error(UsageError):
        refuse_foreign_results("runs/../tuned.toml", ".", sweep)


@torch_only
@pytest.mark.parametrize("name", ["base.h5", "branches.h5", "schedule.toml"])
def test_branches_refuse_results_that_are_not_their_own_before_the_first_step(name, tmp_path):
    from hvdscale.training.branches import refuse_others
    refuse_others(".")
    (tmp_path / name).write_text("mine = 1\n")
    with pytest.raises(HvdscaleError, match=f"{name}: is not "):
        refuse_others(".")


def test_what_a_run_printed_is_known_by_its_command(tmp_path, worded):
    (tmp_path / "w1.out").write_text("horovodrun -np 1 python hvdscale/system/run_module.py hvdscale.cli.train\n")
    refuse_foreign("w1.out", PRINTED)
    with worded.error(UsageError):
        refuse_foreign("job.py", PRINTED)


def test_links_and_dots_are_resolved(worded):
    os.symlink("runs", "other")
    refuse_shared([("--a", "runs/x"), ("--b", "other/y"), ("--a", "runs/x")])
    with worded.error(UsageError):
        refuse_shared([("--a", "runs/x"), ("--b", "other/../runs/x")])


def test_json_of_another_version_is_of_the_same_kind(tmp_path):
    COMMANDS["compare"]("out.json")
    record = json.loads((tmp_path / "out.json").read_text())
    (tmp_path / "out.json").write_text(json.dumps({**record, "version": 0}))
    assert COMMANDS["compare"]("out.json") == 0
