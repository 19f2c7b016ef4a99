"""Launchers: which one is found, the command line each needs, and what it tells its processes."""
import pytest

from hvdscale.errors import UsageError, WorkersError
from hvdscale.launch import (LAUNCHED, find_launcher, launch_command, launch_environment, launched, usable_cores)
from hvdscale.workers import Lone, form

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
    (("horovodrun", "mpirun", "srun"), "horovodrun", "mpirun")])
def test_the_launcher_found_needs_no_ssh_inside_an_allocation(path_with, programs, elsewhere, in_slurm):
    environment = path_with(*programs)
    assert find_launcher("auto", environment) == elsewhere
    assert find_launcher("auto", {**environment, "SLURM_JOB_ID": "7"}) == in_slurm


@pytest.mark.parametrize("name, program", [
    ("horovodrun", "horovodrun"), ("horovodrun-gloo", "horovodrun"), ("mpirun", "mpirun"), ("srun", "srun")])
def test_a_launcher_that_is_asked_for_must_be_there(path_with, name, program):
    with pytest.raises(UsageError, match=f"--launcher {name}: there is no {program} on PATH"):
        find_launcher(name, path_with())
    assert find_launcher(name, path_with(program)) == name


def test_a_launcher_that_is_none_is_named():
    with pytest.raises(UsageError, match="--launcher mpiexec is none of auto, horovodrun, .*mpirun, srun"):
        find_launcher("mpiexec")


@pytest.mark.parametrize("launcher, hosts, command", [
    ("horovodrun", None, ["horovodrun", "-np", "4", "-H", "localhost:4"]),
    ("horovodrun", "a:2,b:2", ["horovodrun", "-np", "4", "-H", "a:2,b:2"]),
    ("horovodrun-gloo", None, ["horovodrun", "--gloo", "-np", "4", "-H", "localhost:4"]),
    ("mpirun", None, ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4"]),
    ("mpirun", "a:2,b:2", ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "4", "-H", "a:2,b:2"]),
    ("srun", None, ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", "-n", "4"])])
def test_each_launcher_has_its_command_line(path_with, launcher, hosts, command):
    path_with("mpirun")
    assert launch_command(launcher, 4, COMMAND, hosts) == command + COMMAND


def test_another_mpi_is_not_given_open_mpis_options(path_with):
    path_with("mpirun", mpi="HYDRA build details")
    assert launch_command("mpirun", 2, COMMAND) == ["mpirun", "-np", "2", *COMMAND]


def test_one_worker_needs_no_launcher_and_more_do():
    assert launch_command(None, 1, COMMAND) == COMMAND
    with pytest.raises(WorkersError, match="2 workers need a launcher, and neither .* is on PATH"):
        launch_command(None, 2, COMMAND)


@pytest.mark.parametrize("user, allowed", [
    (0, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}), (1000, {})])
def test_root_alone_is_allowed_for_open_mpi(monkeypatch, user, allowed):
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert launch_environment({"A": "b"}) == {"A": "b", "SLURM_PMIX_FENCE": "ring", **allowed}


@pytest.fixture
def alone(monkeypatch):
    for variable in LAUNCHED:
        monkeypatch.delenv(variable, raising=False)


def test_a_process_without_a_launcher_is_a_group_of_one(alone):
    assert launched() is None
    assert type(form(60)) is Lone


@pytest.mark.parametrize("variable, launcher", LAUNCHED.items())
def test_a_process_knows_its_launcher_and_how_many_it_started(alone, monkeypatch, variable, launcher):
    monkeypatch.setenv(variable, "3")
    assert launched() == (launcher, 3)
    monkeypatch.setenv(variable, "")
    assert launched() is None


@pytest.fixture
def no_horovod(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "horovod", None)
    monkeypatch.setitem(__import__("sys").modules, "horovod.torch", None)
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "1")         # set again where form() would leave them behind
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "2")


@pytest.mark.parametrize("variable, launcher", LAUNCHED.items())
def test_several_processes_without_horovod_are_an_error(alone, no_horovod, monkeypatch, variable, launcher):
    monkeypatch.setenv(variable, "3")
    said = f"{launcher} started 3 processes, but Horovod cannot be imported .* 3 lone runs"
    with pytest.raises(WorkersError, match=said):
        form(60)


def test_a_single_process_under_a_launcher_needs_no_horovod(alone, no_horovod, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert type(form(60)) is Lone


def test_the_usable_cores_are_some():
    assert len(usable_cores()) >= 1
