"""No run hangs and none ends without its reason: faults of one rank, met by all."""
import contextlib
import io
import re
import shutil
import sys

import pytest

import hvdscale.workloads
from hvdscale.cli.train import _run
from hvdscale.errors import HvdscaleError
from hvdscale.log.reader import read_log
from hvdscale.log.schema import Status
from hvdscale.system import hangup
from tests.conftest import launch_in, launcher_command
from tests.factories.log_files import finished
from tests.parallel import toy_command

STALL = 8
PATIENT = 60        # the stall time where none is to be met, be the machine as busy as it may


@pytest.fixture
def train(run, tmp_path):
    """Train the toy workload on np workers; gives exit code, output and the log's status and reason (None: no log)."""
    def train(np, *options, launcher="mpirun", fault=""):
        stall = STALL if fault.startswith("stop") else PATIENT
        launcher, _, transport = launcher.partition(", ")
        command = [*launcher_command(launcher, np), sys.executable, "-m", "tests.parallel.toy_command", "toy/net",
                   "--set", "log=w.h5", "--steps", "200", "--eval-every", "5", "--set", f"stall_seconds={stall}",
                   "--set", f"transport={transport or 'auto'}", *options]
        done = run(*command, check=False, FAULT=fault)
        output = done.stdout + done.stderr
        ours = output if launcher == "mpirun" else "".join(re.findall(r"^\[\d\]<std(?:out|err)>:(.*\n)", output, re.M))
        assert "Traceback" not in ours or "planted" in ours, output        # horovodrun --gloo ends with one of its own
        if not (tmp_path / "w.h5").exists():
            return done.returncode, output, None, None
        with read_log(tmp_path / "w.h5") as log:
            return done.returncode, output, Status(log.trials["status"][0]), log.trials["stop_reason"][0]
    return train


LAUNCHERS = ("mpirun", "gloo", "mpirun, torch")
STOPPED = {     # and the status in the log (None: no log), and what rank 0 says
    "stop:1:30": (Status.INCOMPLETE, f"has waited {STALL} s for the other workers in 'gradients/0'"),
    "stop-loading:1:0": (None, f"has waited {STALL} s for the other workers in 'errors/the data'"),
    "stop-starting:1:0": (None, f"has waited {5 * STALL} s for the others to start")}


@pytest.mark.parametrize("fault, launcher", [("stop:1:30", "mpirun"), *(
    pytest.param(fault, launcher, marks=pytest.mark.slow) for fault in STOPPED for launcher in LAUNCHERS
    if (fault, launcher) != ("stop:1:30", "mpirun"))])
def test_a_stopped_rank_ends_the_job_within_the_stall_time(train, fault, launcher):
    code, output, status, reason = train(2, launcher=launcher, fault=fault)
    wanted, said = STOPPED[fault]
    assert code != 0 and status == wanted and (status is None or f"waited {STALL} s" in reason)
    assert said in output or (fault, launcher) == ("stop-starting:1:0", "gloo")


# of runs on two workers: the fault, settings, exit code, status in the log (None: no log), and what is said of it
MORE = "more.weight"
ENDS = {
    "an error": ("raise:1:30", {}, 1, Status.INCOMPLETE, r"rank 1 of 2: step \d+: RuntimeError: the planted fault"),
    "NaN": ("nan:1:30", {}, 1, Status.INCOMPLETE, r"rank 1 of 2: .* nan at step \d+, in training example \d+"),
    "no class": ("label:1:30", {}, 1, Status.INCOMPLETE, "rank 1 of 2: label 5 .* 0 .. 4"),
    "no gradient": ("unused:1:12", {}, 2, Status.INCOMPLETE, rf"rank 1 of 2: {MORE}, more.bias: .* at step \d+"),
    "zeros for it": ("unused:1:12", {"unused_parameters": "zeros", "steps": 30}, 0, Status.COMPLETE, "30 steps"),
    "divergence": ("", {"lr": 1e30, "eval_every": 0}, 3, Status.INFEASIBLE, "diverged: the loss is nan at step"),
    "a signal": ("term:1:30", {}, 75, Status.INCOMPLETE, "stopped by a signal after step"),
    "a signal to rank 0": ("term:0:30", {}, 75, Status.INCOMPLETE, "stopped by a signal after step"),
    "no class before": ("labels:1:0", {}, 1, None, "rank 1 of 2: .*label 5 .*7"),
    "a shape": ("shape:1:0", {}, 2, None, rf"rank 1 .* {MORE} .*\(6, 5\) where rank 0 has {MORE} of shape \(5, 5\)"),
    "a draw": ("drawn:0:0", {}, 2, None, f"rank 1 .* {MORE} differs from rank 0's"),
    "no folder": ("missing:1:0", {}, 1, None, "rank 1 of 2: /data/toy: there is no such folder"),
    "fewer examples": ("shorter:1:0", {}, 2, None, "rank 1 found 50 training, 31 .* 17 test examples, rank 0 53 "),
    "misuse": ("", {"global_batch": 20, "local_batch": 8}, 2, None, "--global-batch 20 is not"),
    "a log": ("", {"log": "kept.h5"}, 1, None, "kept.h5.*--overwrite"),
    "a log to replace": ("", {"log": "old.h5", "overwrite": True, "steps": 5}, 0, Status.COMPLETE, "5 steps"),
    "no checkpoint": ("", {"checkpoint": "ck", "resume": "auto"}, 1, None, "ck/step-7.pt: .* damaged")}


def faulty_runs(workers, given):
    """How runs one after another in one launch, in each of which one rank comes to grief, ended for this rank."""
    hvdscale.workloads.DATASETS["toy"] = toy_command
    return [faulty_run(workers, fault, settings) for fault, settings in given]


def faulty_run(workers, fault, settings):
    """Its exit code, its error, and what it printed."""
    toy_command.plan(fault)
    hangup._stopped.clear()                     # by the run before
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code, error = _run("toy/net", [{"steps": 200, "eval_every": 5, "stall_seconds": PATIENT, **settings}],
                               False, workers), ""
        except HvdscaleError as raised:
            code, error = raised.exit_code, str(raised)
    return {"code": code, "error": error, "printed": printed.getvalue()}


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """How each run ended for each rank, all in one launch, and the folder of the logs."""
    folder = tmp_path_factory.mktemp("ends")
    (folder / "ck").mkdir()
    (folder / "ck/step-7.pt").write_text("no checkpoint")
    finished(folder / "before.h5")
    for name in ("kept", "old"):
        shutil.copy(folder / "before.h5", folder / f"{name}.h5")
    given = [(fault, {"log": f"{name}.h5", **settings}) for name, (fault, settings, *_) in ENDS.items()]
    ranks = launch_in(folder, faulty_runs, 2, given)
    return {name: [rank[number] for rank in ranks] for number, name in enumerate(ENDS)}, folder


@pytest.mark.parametrize("name", ENDS)
def test_whatever_one_rank_meets_is_the_same_end_of_all(ends, name):
    (first, second), folder = ends[0][name], ends[1]
    _, settings, code, status, said = ENDS[name]
    assert (first["code"], first["error"]) == (second["code"], second["error"]) and second["printed"] == ""
    assert first["code"] == code and re.search(said, first["error"] + first["printed"]), first
    log = folder / settings.get("log", f"{name}.h5")
    if status is None:
        assert not log.exists() or log.read_bytes() == (folder / "before.h5").read_bytes()
    else:
        with read_log(log) as read:
            assert read.trials["status"].tolist() == [status]
            assert read.trials["stop_reason"][0] in first["error"] + first["printed"]


@pytest.mark.slow
@pytest.mark.parametrize("np, launcher", [(2, "mpirun"), (3, "gloo"), (3, "mpirun, torch")])
@pytest.mark.parametrize("fault, exit_code, log, said", [
    ("unused:1:12", 2, Status.INCOMPLETE, r"rank 1 of \d: more.weight, more.bias: no gradient at step \d+"),
    ("missing:1:0", 1, None, r"rank 1 of \d: /data/toy: there is no such folder")])
def test_what_one_rank_meets_is_printed_once_and_is_the_exit_code(train, np, launcher, fault, exit_code, log, said):
    code, output, status, _ = train(np, launcher=launcher, fault=fault)
    assert (code, status) == (1 if launcher == "gloo" else exit_code, log)
    assert len(re.findall("Error: " + said, output)) == 1


def test_a_fault_while_others_share_a_ghost_group_ends_all_ranks(train):
    code, output, status, _ = train(2, "--ghost-batch", "global", "--set", "model_args.norm=ours", fault="label:1:30")
    assert code == 1 and status in (Status.RUNNING, Status.INCOMPLETE)
    assert re.search(r"Error: rank 1 of 2: step \d+: DataError: label 5 of a training example is not one of", output)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_signal_to_one_rank_before_the_first_step_stops_all_after_it(train, rank):
    code, output, status, reason = train(2, fault=f"term-warming:{rank}:0")
    assert (code, status, reason) == (75, Status.INCOMPLETE, "stopped by a signal after step 1"), output
    assert "Error" not in output
