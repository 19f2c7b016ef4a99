"""A run of one worker that is killed at each write of its end, and run again: nothing of it may be lost.

    python -m tests.training.killed_at_end HOW EVERY      in an empty folder; prints how often it was killed

HOW     what ends the run: steps or target
EVERY   how many writes lie between two kills

The run has been stopped once before, so its end merges two segments. Each run is a forked child of a process that has
loaded torch.
"""
import json
import os
import shutil
import signal
import sys

import h5py
import torch

from hvdscale.cli.train import _run
from hvdscale.log.reader import read_log
from hvdscale.training import loop, prepare
from hvdscale.workers.group import SingleWorker
from tests.factories.runs import KEYS, WORKLOAD, Signalled, assert_same_columns, assert_same_state, state_of

WRITES = [(torch, "save"), *((os, name) for name in ("replace", "unlink", "fsync", "pwrite", "ftruncate")),
          (h5py.File, "flush"), (h5py.Dataset, "__setitem__")]
KEYS = {**KEYS, "steps": 8, "eval_every": 4, "checkpoint_every": 3, "average": "tail", "average_start_steps": 2,
        "checkpoint": "ck", "log": "w.h5", "resume": "auto", "save_model": "m.pt"}


def start(folder, kill_at=None, signal_at=-1, **keys):
    """Run the command in the folder, in a child; gives its exit code, -9 if it was killed at its end's write of that
    number."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        Signalled.at = signal_at
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        if kill_at is not None:
            kill_at_the_end(kill_at)
        code = 1
        try:
            code = _run("toy/net", [{}, {**KEYS, **keys}], False, SingleWorker())
            write_number(kill_at)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_the_end(number):
    """Have this process be killed before its write of that number, from 0, after its last step; or after the last."""
    end = loop.Loop.end

    def counted_from_here(self, stop):
        for owner, name in WRITES:
            setattr(owner, name, killed_before(getattr(owner, name)))
        end(self, stop)

    def killed_before(write):
        def written(*given, **options):
            write_number(number)
            return write(*given, **options)
        return written
    loop.Loop.end = counted_from_here


count = 0


def write_number(last):
    global count
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1


def main(how, every):
    prepare.find, prepare.DataParallelStep = (lambda name: WORKLOAD), Signalled
    keys = {}
    os.mkdir("whole")
    assert start("whole") == 0
    if how == "target":
        with read_log("whole/w.h5") as log:
            keys = {"target": f"train/cross_entropy<={log.evaluations['train/cross_entropy'][-1]}", "steps": 30}
        shutil.rmtree("whole"), os.mkdir("whole")
        assert start("whole", **keys) == 0
    os.mkdir("stopped")
    assert start("stopped", signal_at=4, **keys) == 75
    kills = 0
    while True:
        folder = f"killed{kills}"
        shutil.copytree("stopped", folder)
        code = start(folder, kill_at=every * kills, **keys)
        assert code == (0 if code == 0 else -signal.SIGKILL), code
        check(folder, start(folder, **keys))
        if code == 0:
            break
        shutil.rmtree(folder)
        kills += 1
    print(kills)


def check(folder, code):
    with open(f"{folder}/said") as said:
        assert code == 0, (folder, said.read())
    assert_same_columns(f"{folder}/w.h5", "whole/w.h5")
    assert_same_state(state_of(f"{folder}/ck"), state_of("whole/ck"))
    assert_same_state(*(torch.load(f"{one}/m.pt", weights_only=True) for one in (folder, "whole")))
    assert sorted(os.listdir(folder)) == sorted(os.listdir("whole")), (folder, os.listdir(folder))
    assert sorted(os.listdir(f"{folder}/ck")) == sorted(os.listdir("whole/ck")), (folder, os.listdir(f"{folder}/ck"))
    with open(f"{folder}/ck/outcome") as outcome:
        assert json.load(outcome)["status"] == "COMPLETE"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
