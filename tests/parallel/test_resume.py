"""Real jobs on several workers that are killed and go on: to the last bit at the same number of workers."""
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from tests.conftest import command_environment, launcher_command
from tests.factories.runs import assert_same_columns, assert_same_state, state_of

OPTIONS = ["--set", 'model_args={norm="ours", dropout=0.3}', "--steps", "60", "--eval-every", "10",
           "--set", "checkpoint_every=7", "--set", "threads=1", "--set", "stall_seconds=20", "--resume", "auto"]


class Runs:
    """Starts of one job; the uninterrupted one of each number of workers is made once."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, np_, folder, *options, kill="", launcher="mpirun"):
        """Exit code and output of hvdscale-train on np_ workers, which keeps log and checkpoints in the folder."""
        launched = [*launcher_command(launcher, np_)] if np_ > 1 else []
        command = [*launched, sys.executable, "-m", "tests.parallel.toy_command", "toy/net", *OPTIONS,
                   "--set", "log=w.h5", "--checkpoint", "ck", *options]
        folder.mkdir(exist_ok=True)
        done = subprocess.run(command, cwd=folder, env={**command_environment(), "KILL": kill}, capture_output=True,
                              text=True, timeout=300, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout + done.stderr

    def whole(self, np_, *options):
        """The folder of the uninterrupted run."""
        folder = self.folder / f"whole{np_}{''.join(options)}".replace("/", "-")
        if not folder.exists():
            code, output = self.start(np_, folder, *options)
            assert code == 0, output
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def assert_same_run(one, other):
    assert_same_columns(one / "w.h5", other / "w.h5")
    assert_same_state(state_of(one / "ck"), state_of(other / "ck"))


# a batch that changes at steps 22 and 43
GROWING = ["--set", "batch_schedule=[[0, 6], [22, 14], [43, 16]]", "--set", "optimizer=adam",
           "--set", "beta2_half_life=900", "--set", "lr_rule=sqrt", "--lr", "0.01"]
# workers, options, what becomes of each start and the checkpoint that the next one goes on from
KILLS = [
    (1, (), [("SIGKILL 0 write 1", 0), ("SIGKILL 0 rename 1", 7), ("SIGKILL 0 removal 1", 21)]),
    (2, (), [("SIGKILL 1 step 16", 14), ("SIGTERM 1 step 30", 32), ("SIGKILL all step 44", 42),
             ("SIGKILL 0 rename 2", 56), ("SIGKILL 0 removal 0", 60)]),     # the last checkpoint, twice
    (3, (), [("SIGKILL all step 23", 21)]),
    *((np_, GROWING, [("SIGKILL 0 step 24", 21), (f"SIGTERM {np_ - 1} step 44", 46)]) for np_ in (1, 2, 3))]


def test_a_job_stopped_on_one_transport_and_killed_on_the_other_makes_the_same(runs, tmp_path, monkeypatch):
    """As the uninterrupted one makes: by mpirun, then by torchrun, which starts the workers again."""
    monkeypatch.setenv("PET_MAX_RESTARTS", "1")
    folder = tmp_path / "moved"
    code, output = runs.start(2, folder, kill="SIGTERM 1 step 24")
    assert code == 75 and "transport      H" in output, output
    code, output = runs.start(2, folder, kill="SIGKILL 1 step 37", launcher="torchrun")
    assert code == 0 and "transport      torch.d" in output, output
    assert re.findall(r"resumes +from ck/step-(\d+).pt", output) == ["26", "35"], output
    assert_same_run(folder, runs.whole(2))
    assert [path.name for path in folder.glob("*.h5*")] == ["w.h5"]
    with read_log(folder / "w.h5") as log:
        assert log.restarts.rows == 3


@pytest.mark.slow
@pytest.mark.parametrize("np_, options, kills", KILLS)
def test_a_job_killed_again_and_again_makes_what_the_whole_one_makes(runs, tmp_path, np_, options, kills):
    folder, before = tmp_path / "killed", None
    for kill, goes_on_at in [*kills, ("", None)]:
        code, output = runs.start(np_, folder, *options, kill=kill)
        assert code == (75 if "TERM" in kill else 0) if not kill or "TERM" in kill else code not in (0, 75), output
        said = re.search(r"resumes +from ck/step-(\d+).pt", output)
        assert (int(said[1]) if said else None) == before, output
        before = goes_on_at
    assert_same_run(folder, runs.whole(np_, *options))
    assert [path.name for path in folder.glob("*.h5*")] == ["w.h5"]
    with read_log(folder / "w.h5") as log:
        assert log.restarts.rows == len(kills) + 1
        if options:
            assert log.steps["global_batch"].tolist() == [6] * 22 + [14] * 21 + [16] * 17
            assert log.evaluations["examples"][-1] == 22 * 6 + 21 * 14 + 17 * 16


def parameters(folder):
    return np.concatenate([values.double().flatten().numpy() for values in state_of(folder / "ck")["model"].values()])


def test_a_job_goes_on_at_another_number_of_workers_with_the_same_global_batch(runs, tmp_path):
    """Float64, 20 steps: 2 workers, then 1, against 1. The noise scale's columns are of each worker's own share."""
    options = ["--precision", "fp64", "--steps", "20", "--global-batch", "8"]
    folder, whole = tmp_path / "moved", runs.whole(1, *options)
    assert runs.start(2, folder, *options, kill="SIGKILL 1 step 9")[0] != 0
    code, output = runs.start(1, folder, *options)
    assert code == 0 and "note: workers was 2, is now 1" in output, output
    difference = np.linalg.norm(parameters(folder) - parameters(whole)) / np.linalg.norm(parameters(whole))
    assert difference <= 1e-10
    with read_log(folder / "w.h5") as log, read_log(whole / "w.h5") as reference:
        assert log.restarts["workers"].tolist() == [2, 1] and log.restarts["first_step"].tolist() == [0, 7]
        for table, other in zip(log.tables[2:], reference.tables[2:]):
            assert table["step"].tolist() == other["step"].tolist()
            for name in table:
                if not name.endswith(("seconds", "sqnorm", "local_examples")):
                    np.testing.assert_allclose(table[name], other[name], rtol=1e-9, err_msg=name)


# exit codes of a start that got the signal, or ended before it
ENDS = {"SIGKILL": (-9, 137, 1, 0), "SIGTERM": (75, -15, 143, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(30))
def test_a_job_killed_at_random_moments_goes_on_to_the_last_bit(runs, tmp_path, trial):
    draw, np_, folder = random.Random(trial), trial % 3 + 1, tmp_path / "killed"
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        number, rank = draw.choice(["SIGKILL", "SIGTERM"]), draw.choice(["all", *map(str, range(np_))])
        code, output = runs.start(np_, folder, kill=f"{number} {rank} seconds {draw.uniform(0, 0.15 * np_):.4f}")
        assert code in ENDS[number] and "Traceback" not in output, output
    code, output = runs.start(np_, folder)
    assert code == 0, output
    assert_same_run(folder, runs.whole(np_))
