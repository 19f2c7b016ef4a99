"""The folder by which the processes of a launch exchange records: nothing of another user is read or run there."""
import os
import pickle

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.cli import doctor_script
from hvdscale.doctor.script.examine import examine
from hvdscale.doctor.script.record import (BackwardPass, Clip, GeneratorUse, Iteration, LoadedBatch, LossCall,
                                           OptimizerUpdates, Record, Sampling, Update, load)
from hvdscale.errors import HvdscaleError
from hvdscale.watch.place import place_for
from hvdscale.watch.runner import ScriptRequest
from hvdscale.workers import orphans
from hvdscale.workers.launch import Process

NOBODY = 65534
RANKS = [Process("horovodrun", rank, 2, rank, 2, "horovodrun:127.0.0.1:1234") for rank in range(2)]
APART = [Process("srun", rank, 2, 0, 1, "srun:7:0") for rank in range(2)]       # each on a host
MET = {"link": "is a link", "open": "is open to other users (mode 0777)", "owned": "belongs to user "}


class Attack:
    """A pickle that leaves a file where it is loaded."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder that all users may write to, in which a launch of one host or of several puts its own."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setenv("HVDSCALE_SHARED", str(shared))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('the script itself')\n")
    return shared


@pytest.fixture
def plant(shared, tmp_path, monkeypatch):
    """Make the launch's folder before rank 0 does, with a script, pickles and a port of the attacker's; gives what is
    wrong with it: the folder itself, or for ``above`` the one that it is in."""
    def plant(processes, wrong):
        with place_for(processes[0], 1) as place:
            pass
        for folder in ("launched/folder", "1"):
            (place / folder).mkdir(parents=True)
        place.chmod(0o700)
        (place / "launched/folder/train.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})\n")
        (place / "launched/task.json").write_text('{"port": 1234}')
        for rank in range(2):
            (place / f"launched/rank{rank}.record").write_bytes(pickle.dumps(Attack(tmp_path / "ran")))
            (place / f"launched/rank{rank}.ended").touch()
        kind, _, above = wrong.partition(" ")
        target = place.parent if above else place
        if kind == "link":
            target.rename(tmp_path / "elsewhere")
            target.symlink_to(tmp_path / "elsewhere")
        elif kind == "open":
            target.chmod(0o777)
        elif os.getuid() == 0:
            os.chown(target, NOBODY, NOBODY)
        else:
            monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        return target
    return plant


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("processes, remedy, wrong", [
    *((RANKS, "TMPDIR=FOLDER", wrong + above) for wrong in MET for above in ("", " above")),
    *((APART, "HVDSCALE_SHARED=FOLDER", wrong) for wrong in MET)])
def test_another_users_folder_is_an_error_and_nothing_in_it_is_run(plant, tmp_path, rank, processes, remedy, wrong):
    target = plant(processes, wrong)
    before = sorted(target.rglob("*"))
    with pytest.raises(HvdscaleError) as raised:
        examine(ScriptRequest("train.py", (), 2, 5, 1), 2, processes[rank], print)
    said = str(raised.value)
    assert f"{target} {MET[wrong.split()[0]]}" in said and remedy in said and "mode 0700" in said and "\n" not in said
    assert not (tmp_path / "ran").exists() and sorted(target.rglob("*")) == before


def test_a_shared_folder_in_which_any_user_can_replace_another_is_an_error(shared):
    shared.chmod(0o777)
    with pytest.raises(HvdscaleError, match=r"can be replaced by any user \(mode 0777 of the folder above\)"):
        with place_for(APART[0], 1):
            pass


def test_the_folder_of_a_killed_launch_of_the_same_name_is_replaced(shared):
    for processes in (RANKS, APART):
        with place_for(processes[0], 1) as place:
            (place / "launched").mkdir()
            (place / "launched/task.json").write_text("{}")
            with place_for(processes[1], 1) as same:
                assert same == place and place.stat().st_mode & 0o777 == 0o700
            with place_for(processes[0], 1) as again:
                assert again == place and list(again.iterdir()) == []
        assert not place.exists()


def test_a_rank_whose_rank_0_makes_no_folder_says_where_it_waited(shared):
    with pytest.raises(HvdscaleError, match=r"rank 0 has left nothing at .*shared.* within 0.1 s; HVDSCALE_SHARED="):
        with place_for(APART[1], 0.1):
            pass


def test_a_record_is_read_as_it_was_written_and_a_pickle_is_not(tmp_path):
    draws = GeneratorUse({"torch": "ab"}, frozenset({"torch"}))
    batch = LoadedBatch((3, "'key'"), ("c0", "c1"), 2, 1, draws)
    sampling = Sampling("RandomSampler", None, None, True, False, 0, 1, True)
    loss = LossCall("mse_loss", -float("inf"), float("nan"), "train.py:7", np.zeros(1), np.ones(2))
    one = BackwardPass(0.25, np.array([0.1, np.nan, -0.0]), [loss], {0: 3}, draws, False, "train.py:7", draws)
    update = Update(np.array([1e-300]), np.array([np.pi]), np.empty(0), "d", (0.1, 0.2), (4,), [one],
                    [Clip(float("inf"), 1.0, 1, "train.py:8")], "train.py:9", "e")
    iteration = Iteration(("Data\udce9", 9), False, sampling, 0, 7, 0, [batch], [(1, "k")], True, cut=4, models=("m",))
    record = Record(1, 2, "ended", [iteration], [(4, 2)], [OptimizerUpdates("SGD", [("weight", 1)], [update])],
                    {8: 2, 16: 1},
                    {"BatchNorm.mean": "e"}, ["head"], True, 3, [(2, "all_reduce")], frozenset({"numpy ab"}),
                    "fully_shard", ["r"], ["i"], "Traceback")
    record.save(tmp_path)
    read = load(tmp_path, 1, 2)
    assert repr(read) == repr(record)
    arrays = [[update.gradient, update.before_clips, update.passes[0].gradient]
              for update in (record.updates[0], read.updates[0])]
    assert [one.tobytes() for one in arrays[0]] == [one.tobytes() for one in arrays[1]]
    assert load(tmp_path, 0, 2) == Record(0, 2)                     # of a rank that left none
    (tmp_path / "rank0.record").write_bytes(pickle.dumps(Attack(tmp_path / "ran")))
    with pytest.raises(ValueError):
        load(tmp_path, 0, 2)
    assert not (tmp_path / "ran").exists()


def test_a_launcher_inside_torchrun_is_refused_before_the_script_runs(shared, monkeypatch, worded):
    monkeypatch.setattr(orphans, "LAUNCHERS", [("mpirun", ()), ("torchrun", ())])
    done = CliRunner().invoke(doctor_script.script, ["train.py"])
    worded(done.output, about="torchrun started")
    assert done.exit_code == 1
    assert "the script itself" not in done.output
