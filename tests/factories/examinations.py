"""hvdscale-doctor script and resume, carried out many times by one process that has imported torch: each in a fork of
it, and each rank in a fork in place of an interpreter of its own, which would import torch again.

    with Doctor() as doctor: doctor.run(folder, "train.py", "--batch", "16", "--", "--batch", "{local}")"""
import contextlib
import gc
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from tests.conftest import ROOT, command_environment


class Said(NamedTuple):
    """How an examination ended."""

    code: int
    out: str
    err: str


class Doctor:
    """The process; its examinations run one after the other."""

    def __enter__(self):
        self._server = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=ROOT, env=command_environment())
        return self

    def __exit__(self, *_):
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()

    def run(self, folder, *words, command="script"):
        return self._ask(command, folder, words)

    def losses(self, folder, *words, watched):
        """The losses that rank 0 of two prints, run under the watchers or as torchrun would run it."""
        said = self._ask("watched" if watched else "plain", folder, words)
        assert said.code == 0, said.err
        return [line for line in said.out.splitlines() if line.startswith("loss")]

    def _ask(self, what, folder, words):
        self._server.stdin.write(json.dumps([what, str(folder), *words]) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Said(code, *((Path(folder) / name).read_text() for name in (".out", ".err")))


def block(out, check):
    """The details of a check that failed or warned, in one line."""
    return " ".join(re.search(rf"^(?:FAILED|warned): {check}\n((?:  .*\n)+)", out, re.M)[1].split())


class ForkedRank:
    """What a Popen of a rank is to its runner, but a fork of this process."""

    def __init__(self, command, stdin, stdout, stderr, env, cwd, start_new_session, preexec_fn):
        self.returncode, self.pid = None, os.fork()
        if self.pid:
            return
        with contextlib.suppress(BaseException):
            os.setsid()
            preexec_fn()
            with open(os.devnull) as nothing:
                for descriptor, file in enumerate((nothing, stdout, stderr)):
                    os.dup2(file.fileno(), descriptor)
            os.environ.clear()
            os.environ.update(env)
            os.chdir(cwd)
            _run_rank(command)
        os._exit(1)

    def poll(self):
        if self.returncode is None:
            self._ended(*os.waitpid(self.pid, os.WNOHANG))
        return self.returncode

    def wait(self):
        if self.returncode is None:
            self._ended(*os.waitpid(self.pid, 0))
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def _ended(self, pid, status):
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _run_rank(command):
    """What python -m does with the command's arguments, with seeds and threads as in a process of its own."""
    import torch

    _, _, module, *words = command
    rank = sys.modules[module]
    gc.enable()
    sys.argv, sys.path = [rank.__file__, *words], [os.getcwd(), *sys.path]
    random.seed()
    np.random.seed()
    torch.seed()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    try:
        rank.main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()


def _serve():
    from hvdscale.cli import doctor, doctor_script  # noqa: F401
    from hvdscale.doctor.resume import examine, listen  # noqa: F401  imported before the forks
    from hvdscale.watch import runner
    runner.subprocess = SimpleNamespace(Popen=ForkedRank, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    for line in sys.stdin:
        what, folder, *words = json.loads(line)
        child = os.fork()
        if not child:
            _redirect(Path(folder))
            code = 1
            try:
                if what in ("script", "resume"):
                    sys.argv = ["hvdscale-doctor", what, *words]
                    doctor.main()
                (_watched if what == "watched" else _plain)(words)
                code = 0
            except SystemExit as left:
                code = left.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _redirect(folder):
    os.chdir(folder)
    os.environ["COLUMNS"] = "100"
    for descriptor, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)


def _watched(words):
    from hvdscale.doctor.script.runs import run_here
    from hvdscale.watch.runner import ScriptRequest, threads_of
    with tempfile.TemporaryDirectory() as place:
        run_here(ScriptRequest(words[0], tuple(words[1:]), 4, 60, threads_of(2)), 2, Path(place) / "run")
        print((Path(place) / "run/rank0.stdout").read_text())


def _plain(words):
    import runpy

    from hvdscale.watch.runner import free_port, of_torchrun
    port, ranks = free_port(), []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(of_torchrun(rank, 2, rank, 2, port))
            sys.argv = words
            if rank:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            runpy.run_path(words[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
    for rank in ranks:
        os.waitpid(rank, 0)


if __name__ == "__main__":
    _serve()
