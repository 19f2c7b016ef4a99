"""Launchers: which one is found, the command line each needs, and what it tells its processes."""
import os
import sys

import pytest

from hvdscale.errors import UsageError, WorkersError
from hvdscale.workers.group import SingleWorker
from hvdscale.workers.horovod import load_horovod
from hvdscale.workers.transport import choose, form
from hvdscale.system.run_module import OURS, SAFE
from hvdscale.workers.launch import (LAUNCHED, find_launcher, killed_process, launch_command, launch_environment,
                                     launched, refuse_too_many)
from tests.wording import refusals

COMMAND = ["python", "-m", "job"]


@pytest.fixture
def path_with(tmp_path, monkeypatch):
    """A PATH on which there are just these programs; mpirun says that it is the one named."""
    def path_with(*names, mpi="mpirun (Open MPI) 4.1.8"):
        for name in names:
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{mpi}'\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        return {"PATH": str(tmp_path)}
    return path_with


@pytest.mark.parametrize("programs, elsewhere, in_slurm", [
    ((), None, None), (("mpirun",), "mpirun", "mpirun"), (("horovodrun",), "horovodrun", "horovodrun"),
    (("srun",), None, "srun"),
    (("horovodrun", "mpirun"), "horovodrun", "mpirun"), (("horovodrun", "srun"), "horovodrun", "srun"),
    (("horovodrun", "mpirun", "srun"), "horovodrun", "mpirun"), (("torchrun",), "torchrun", "torchrun"),
    (("horovodrun", "mpirun", "torchrun"), "horovodrun", "mpirun")])
def test_the_launcher_found_needs_no_ssh_inside_an_allocation(path_with, programs, elsewhere, in_slurm):
    environment = path_with(*programs)
    assert find_launcher("auto", environment) == elsewhere
    assert find_launcher("auto", {**environment, "SLURM_JOB_ID": "7"}) == in_slurm


def test_without_horovod_torchrun_comes_first_but_starts_no_workers_on_other_nodes(path_with, no_horovod):
    environment = path_with("mpirun", "torchrun")
    assert find_launcher("auto", environment) == "torchrun"
    assert find_launcher("auto", {**environment, "SLURM_JOB_ID": "7"}) == "mpirun"


@pytest.mark.parametrize("name, program", [
    ("horovodrun", "horovodrun"), ("horovodrun-gloo", "horovodrun"), ("mpirun", "mpirun"), ("srun", "srun"),
    ("torchrun", "torchrun")])
def test_a_launcher_that_is_asked_for_must_be_there(path_with, name, program):
    with pytest.raises(UsageError, match=f"--launcher {name}: there is no {program} on PATH"):
        find_launcher(name, path_with())
    assert find_launcher(name, path_with(program)) == name


def test_more_workers_than_there_is_room_for_and_hosts_in_vain_are_refused(golden, monkeypatch):
    monkeypatch.setattr("hvdscale.workers.launch.usable_cores", lambda: frozenset({0, 4}))
    golden("launch", refusals("launch", UsageError, globals()))
    for launcher, workers, hosts in (("horovodrun", 4, "a:2,b:2"), ("horovodrun", 2, "a,b"), ("horovodrun", 32, None)):
        refuse_too_many(workers, launcher, hosts, {})
    refuse_too_many(99, "mpirun", None, {"SLURM_JOB_ID": "7"})


@pytest.mark.parametrize("launcher, hosts, command", [
    ("horovodrun", None, ["horovodrun", "-np", "4", "-H", "localhost:4"]),
    ("horovodrun", "a:2,b:2", ["horovodrun", "-np", "4", "-H", "a:2,b:2"]),
    ("horovodrun-gloo", None, ["horovodrun", "--gloo", "-np", "4", "-H", "localhost:4"]),
    ("mpirun", None, ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4"]),
    ("mpirun", "a:2,b:2", ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4", "-H", "a:2,b:2"]),
    ("srun", None, ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "-n", "4"]),
    ("torchrun", None, ["torchrun", "--standalone", "--nproc-per-node", "4", "--no-python", "--"])])
def test_each_launcher_has_its_command_line(path_with, launcher, hosts, command):
    path_with("mpirun")
    assert launch_command(launcher, 4, COMMAND, hosts) == command + COMMAND


def test_another_mpi_is_not_given_open_mpis_options_and_one_worker_needs_no_launcher(path_with, worded):
    path_with("mpirun", mpi="HYDRA build details")
    assert launch_command("mpirun", 2, COMMAND) == ["mpirun", "-np", "2", *COMMAND]
    assert launch_command(None, 1, COMMAND) == COMMAND
    with worded.error(WorkersError):
        launch_command(None, 2, COMMAND)


@pytest.mark.parametrize("user, allowed", [
    (0, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}), (1000, {})])
def test_root_alone_is_allowed_for_open_mpi(monkeypatch, user, allowed):
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert launch_environment({"A": "b"}) == {"A": "b", "SLURM_PMIX_FENCE": "ring", SAFE: OURS, **allowed}


@pytest.fixture
def alone(monkeypatch):
    for variable in LAUNCHED:
        monkeypatch.delenv(variable, raising=False)


def test_a_process_without_a_launcher_or_alone_under_one_needs_no_horovod(alone, no_horovod, monkeypatch):
    assert launched() is None and type(form(60)) is SingleWorker
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert type(form(60)) is SingleWorker


@pytest.mark.parametrize("variable, launcher", LAUNCHED.items())
def test_a_process_knows_its_launcher_and_how_many_it_started(alone, monkeypatch, variable, launcher):
    monkeypatch.setenv(variable, "3")
    assert launched() == (launcher, 3)
    monkeypatch.setenv(variable, "")
    assert launched() is None


@pytest.fixture
def no_horovod(monkeypatch):
    for name in ("horovod", "horovod.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")         # set again where form() would leave them behind
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "2")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")


@pytest.mark.parametrize("variable, launcher", LAUNCHED.items())
def test_several_processes_without_horovod_are_an_error(alone, no_horovod, monkeypatch, variable, launcher):
    monkeypatch.setenv(variable, "3")
    said = f"{launcher} started 3 processes, but Horovod cannot be imported .* 3 separate runs"
    if launcher == "torchrun":
        said = "transport = 'horovod' does not join the processes of torchrun"
    with pytest.raises(WorkersError, match=said):
        form(60, "horovod")


def test_horovod_looks_for_sums_more_often_than_by_default_unless_told(no_horovod, monkeypatch):
    assert load_horovod("", 1, 60) is None and os.environ["HOROVOD_CYCLE_TIME"] == "3"
    monkeypatch.delenv("HOROVOD_CYCLE_TIME")
    monkeypatch.setenv("HOROVOD_CONTROLLER", "gloo")
    assert load_horovod("", 1, 60) is None and "HOROVOD_CYCLE_TIME" not in os.environ
    monkeypatch.setenv("HOROVOD_CONTROLLER", "mpi")
    assert load_horovod("", 1, 60) is None and os.environ["HOROVOD_CYCLE_TIME"] == "0.25"


@pytest.mark.parametrize("transport, launcher, installed, chosen", [
    ("auto", "torchrun", True, "torch"), ("auto", "mpirun", True, "horovod"), ("auto", "srun", False, "torch"),
    ("auto", "horovodrun", False, "horovod"), ("torch", "srun", True, "torch"), ("horovod", "mpirun", True, "horovod")])
def test_the_transport_follows_the_launcher_then_what_is_installed(monkeypatch, transport, launcher, installed, chosen):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found" if installed else None)
    assert choose(transport, launcher) == chosen


@pytest.mark.parametrize("transport, launcher, said", [
    ("horovod", "torchrun", "does not join .* torchrun: set auto, or start them with mpirun or srun"),
    ("torch", "horovodrun", "does not join .* horovodrun: set auto, or start them with torchrun, mpirun or srun"),
    ("ucc", "mpirun", "is none of auto, horovod, torch")])
def test_a_transport_that_a_launcher_does_not_serve_is_an_error(transport, launcher, said):
    with pytest.raises(WorkersError, match=f"transport = '{transport}' {said}"):
        choose(transport, launcher)


@pytest.mark.parametrize("said, killed", [
    ("Process 1 exit with status code 137.\nTerminating remaining workers after failure of Process 1.\n"
     "Process 0 exit with status code 143.\n",
     "process 1 was killed by signal 9 (SIGKILL), as the kernel does where memory runs out"),
    ("The first process to do so was:\nProcess name: 0\nExit code: 137\n", "process 0 was killed by signal 9 (SIGKI"),
    ("Process name: 3\nExit code: -11\n", "process 3 was killed by signal 11 (SIGSEGV)"),
    ("mpirun noticed that process rank 2 with PID 0 on node a7 exited on signal 6 (Aborted).",
     "process 2 was killed by signal 6 (SIGABRT)"),
    ("Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-23_20:39:25\n  host      : localhost\n"
     "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 13092)\n", "process 1 was killed by signal 9 (SIGKILL)"),
    ("Process 1 exit with status code 1.\nProcess name: 1\nExit code: 1\n", ""), ("Exit code: 137", "")])
def test_the_process_that_was_killed_is_named_by_what_its_launcher_said(said, killed):
    assert killed_process(said).startswith(killed) and bool(killed_process(said)) == bool(killed)
