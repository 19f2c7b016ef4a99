"""A worker stops when its launcher has ended: real processes, with a stand-in for the launcher."""
import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from hvdscale.system.ancestors import find_process
from tests.conftest import command_environment

WORKER = """
import os, signal, sys, time
from hvdscale.workers import orphans

def stop(*_):
    os.write(1, b"stopped\\n")       # the signal may come while "ready" is being printed
    os._exit(75)

signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else stop)
found = [(name, [process.pid for process in processes]) for name, processes in orphans.LAUNCHERS]
print(os.getpid(), found, flush=True)
orphans.stop_without_launcher(0.5 if "deaf" in sys.argv else 60)
print("ready", flush=True)
time.sleep(120)
"""
# starts its arguments with the variables of its first one, prints its own pid first, and waits
LAUNCHER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
variables = dict(word.split("=") for word in sys.argv[1].split())
sys.exit(subprocess.run(sys.argv[2:], env={**os.environ, **variables}).returncode)
"""
MPIRUN = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0"
TORCHRUN = "ROLE_WORLD_SIZE=2 RANK=0"
GLOO = "HOROVOD_SIZE=2 HOROVOD_RANK=0"
LAUNCHED = [sys.executable, "-c", LAUNCHER]


@pytest.fixture
def start(tmp_path):
    """Start a command that ends in a worker; gives its process, the launchers' pids, the worker's and what that found.
    Whatever is left in the end is killed."""
    began = []

    def start(*command, launchers=1, **environment):
        process = subprocess.Popen(
            [*command, sys.executable, "-c", WORKER, *environment.pop("arguments", ())], stdout=subprocess.PIPE,
            text=True, start_new_session=True, env={**command_environment(), **environment})
        began.append(process)
        pids = [int(process.stdout.readline()) for _ in range(launchers)]
        worker, _, found = process.stdout.readline().partition(" ")
        assert process.stdout.readline() == "ready\n"
        return process, pids, int(worker), eval(found)
    yield start
    for process in began:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)          # the session's group, which outlives its leader
        process.stdout.close()
        process.wait()


def gone(pid, seconds=60):
    until = time.monotonic() + seconds
    while find_process(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not find_process(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("script", [[], ["bash", "-c", '"$@"; true', "bash"]])
def test_a_worker_stops_when_its_launcher_has_ended(start, script, number):
    process, [launcher], worker, found = start(*LAUNCHED, MPIRUN, *script)
    assert found == [("mpirun", [launcher])]
    os.kill(launcher, number)
    assert process.stdout.read() == "stopped\n" and gone(worker)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_stops_when_the_launcher_of_its_launcher_has_ended(start, killed):
    process, launchers, worker, found = start(*LAUNCHED, MPIRUN, *LAUNCHED, TORCHRUN, launchers=2)
    assert found == [("torchrun", [launchers[1]]), ("mpirun", [launchers[0]])]
    os.kill(launchers[killed], signal.SIGKILL)
    assert process.stdout.read() == "stopped\n" and gone(worker)


def test_a_worker_that_does_not_stop_is_ended_after_the_stall_time(start):
    _, [launcher], worker, _ = start(*LAUNCHED, MPIRUN, arguments=["deaf"])
    os.kill(launcher, signal.SIGKILL)
    assert gone(worker)


def test_a_process_without_a_launcher_may_outlive_its_parent(start):
    _, _, _, found = start("bash", "-c", 'echo $$; "$@" & wait', "bash")
    assert found == []


def test_workers_of_horovodrun_with_mpi_watch_the_shell_that_it_became(start, tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[1:5] = ['{MPIRUN}']\n{LAUNCHER}")
    mpirun.chmod(0o755)
    shell = ["/bin/sh", "-c", 'mpirun --allow-run-as-root --tag-output -np 2 "$@"; exit $?', "sh"]
    path = f"{tmp_path}:{command_environment()['PATH']}"
    process, [launcher], worker, found = start(*shell, PATH=path)
    assert found == [("mpirun", [launcher, process.pid])]
    process.kill()
    assert process.stdout.read() == "stopped\n" and gone(worker)


def test_workers_of_horovodrun_with_gloo_watch_what_runs_their_shell(start):
    shell = ["/bin/sh", "-c", f'env {GLOO} "$@"; exit $?', "sh"]
    process, [helper], worker, found = start(*LAUNCHED, "SOME=thing", *shell)
    [(name, (shell, watched))] = found
    assert (name, watched) == ("horovodrun", helper) and shell != helper
    os.kill(helper, signal.SIGKILL)
    assert process.stdout.read() == "stopped\n" and gone(worker)


REFUSED = "from hvdscale.workers import orphans; orphans.refuse_launcher_in_torchrun()"


@pytest.mark.parametrize("launchers, inner", [
    ((TORCHRUN, MPIRUN), "mpirun"), ((TORCHRUN, GLOO), "horovodrun"), ((MPIRUN, TORCHRUN), None), ((TORCHRUN,), None)])
def test_a_launcher_inside_torchrun_is_refused_and_the_reverse_is_not(run, launchers, inner):
    command = [word for variables in launchers for word in (*LAUNCHED, variables)]
    done = run(*command, sys.executable, "-c", REFUSED, check=False)
    assert done.returncode == (1 if inner else 0), done.stderr
    said = f"WorkersError: torchrun started {inner}, which started this process" if inner else ""
    assert said in done.stderr and bool(done.stderr) == bool(said)


@pytest.mark.parametrize("command", ["train", "tune", "branch", "doctor"])
def test_a_command_looks_for_its_launcher_before_it_imports_torch(run, command):
    """Which may take a minute, in which the launcher may end."""
    look = f"import hvdscale.cli.{command}, sys; print([name in sys.modules for name in "
    assert run(sys.executable, "-c", look + "('hvdscale.workers.orphans', 'torch')])").stdout == "[True, False]\n"
