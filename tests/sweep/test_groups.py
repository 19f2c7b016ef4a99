"""A process's place in its launch, told by made environments, and the groups that it cannot be part of."""
import os
import re
import socket
import sys

import pytest

from hvdscale.errors import UsageError, WorkersError
from hvdscale.sweep.groups import form_group, leave
from hvdscale.workers.group import Workers
from hvdscale.workers.launch import Process, place
from tests.wording import refusals

LAUNCHER = re.compile(r"(SLURM|PMI|PMIX|OMPI|HOROVOD|MPI|ROLE|TORCHELASTIC)_")
ADDRESS = "7.0;tcp://192.0.2.2:33627"
OPEN_MPI = dict(OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_LOCAL_RANK="1",
                OMPI_COMM_WORLD_LOCAL_SIZE="2", PMIX_NAMESPACE="7", OMPI_MCA_orte_hnp_uri=ADDRESS)
SRUN = dict(SLURM_STEP_NUM_TASKS="8", SLURM_PROCID="6", SLURM_LOCALID="1", SLURM_STEP_TASKS_PER_NODE="2(x2),3,1",
            SLURM_NODEID="2", SLURM_JOB_ID="17", SLURM_STEP_ID="0")
GLOO = dict(HOROVOD_SIZE="4", HOROVOD_RANK="2", HOROVOD_LOCAL_RANK="0", HOROVOD_LOCAL_SIZE="3",
            HOROVOD_GLOO_RENDEZVOUS_ADDR="192.0.2.7", HOROVOD_GLOO_RENDEZVOUS_PORT="18485")
HYDRA = dict(PMI_SIZE="3", PMI_RANK="2", MPI_LOCALRANKID="2", MPI_LOCALNRANKS="3")
TORCHRUN = dict(ROLE_WORLD_SIZE="4", RANK="3", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="a",
                MASTER_ADDR="192.0.2.7", MASTER_PORT="29500")
CORES = frozenset({3, 5})
# an mpirun inside an allocation: Slurm's variables are those of mpirun's own helper on the host
OPEN_MPI_IN_SLURM = {**SRUN, **OPEN_MPI}


@pytest.fixture
def environment(monkeypatch):
    """Have just these variables of a launcher."""
    def environment(**variables):
        for name in [name for name in os.environ if LAUNCHER.match(name)]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
    environment()
    return environment


@pytest.mark.parametrize("told, expected", [
    (OPEN_MPI, Process("mpirun", 3, 4, 1, 2, f"mpirun:7:{ADDRESS}")),
    (OPEN_MPI_IN_SLURM, Process("mpirun", 3, 4, 1, 2, f"mpirun:7:{ADDRESS}")),
    (SRUN, Process("srun", 6, 8, 1, 3, "srun:17:0")),
    (GLOO, Process("horovodrun", 2, 4, 0, 3, "horovodrun:192.0.2.7:18485")),
    (HYDRA, Process("mpirun", 2, 3, 2, 3, f"mpirun:{socket.gethostname()}:{os.getppid()}")),    # which tells no job
    ({}, Process(None, 0, 1, 0, 1, f"{socket.gethostname()}:{os.getpid()}")),
    ({**OPEN_MPI_IN_SLURM, **TORCHRUN}, Process("torchrun", 3, 4, 1, 2, "torchrun:a:192.0.2.7:29500"))])
def test_a_process_knows_its_place_from_what_its_launcher_tells_it(environment, told, expected):
    environment(**told)
    assert place() == expected


@pytest.mark.parametrize("told, other", [
    (OPEN_MPI, dict(PMIX_NAMESPACE="8")), (OPEN_MPI, dict(OMPI_MCA_orte_hnp_uri="7.0;tcp://192.0.2.3:33627")),
    (SRUN, dict(SLURM_STEP_ID="1")), (SRUN, dict(SLURM_RESTART_COUNT="1")), (SRUN, dict(SLURM_CLUSTER_NAME="b")),
    (GLOO, dict(HOROVOD_GLOO_RENDEZVOUS_PORT="18486"))])
def test_another_launch_is_another_job_and_another_rank_is_not(environment, told, other):
    environment(**told)
    job, rank = place().job, {"mpirun": "OMPI_COMM_WORLD_RANK", "srun": "SLURM_PROCID",
                              "horovodrun": "HOROVOD_RANK"}[place().launcher]
    environment(**{**told, rank: "0"})
    assert place().job == job
    environment(**{**told, **other})
    assert place().job != job


@pytest.mark.parametrize("nodes, sizes", [("4", [4]), ("2(x3)", [2, 2, 2]), ("3,1(x2),2", [3, 1, 1, 2])])
def test_the_tasks_on_a_node_of_slurm_are_counted_node_by_node(environment, nodes, sizes):
    for node, size in enumerate(sizes):
        environment(**{**SRUN, "SLURM_STEP_TASKS_PER_NODE": nodes, "SLURM_NODEID": str(node)})
        assert place().local_size == size


@pytest.mark.parametrize("told, lacking", [
    (OPEN_MPI, "OMPI_COMM_WORLD_RANK"), (SRUN, "SLURM_STEP_TASKS_PER_NODE"), (HYDRA, "MPI_LOCALRANKID")])
def test_a_launcher_without_ranks_is_named_unless_it_started_one_process(environment, told, lacking, worded):
    told = {name: value for name, value in told.items() if name != lacking}
    environment(**told)
    with worded.error(WorkersError):
        place()
    environment(**{**told, next(iter(told)): "1"})
    assert (place().rank, place().local_rank, place().local_size) == (0, 0, 1)


@pytest.mark.parametrize("told", [{}, OPEN_MPI, SRUN, GLOO, HYDRA])
def test_a_group_of_one_has_its_place_on_the_host_and_no_partners(environment, told):
    environment(**told)
    process = place()
    group = form_group(1, 60, CORES)
    assert isinstance(group, Workers)
    assert (group.rank, group.size) == (0, 1)
    assert (group.local_rank, group.local_size) == (process.local_rank, process.local_size)
    assert group.cores() == CORES


def test_processes_that_make_no_groups_of_that_size_are_told_what_would(environment, golden):
    def joined(told, workers):
        environment(**told)
        form_group(workers, 60, CORES)
    golden("groups", refusals("groups", (UsageError, WorkersError), {**globals(), "joined": joined}))


@pytest.fixture
def variables_kept(monkeypatch):
    """What a group sets for MPI and Horovod ends with the test."""
    for name in ("OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_async_mpi_finalize", "HOROVOD_STALL_CHECK_TIME_SECONDS",
                 "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_CYCLE_TIME"):
        monkeypatch.setenv(name, "1")


class Unjoined:
    """Horovod and MPI of a process that its launcher does not join to others, as both see it."""

    COMM_WORLD = property(lambda self: self)

    def Get_size(self):
        return 1

    def mpi_built(self):
        return True


def test_processes_that_mpi_does_not_join_are_an_error_not_lone_groups(environment, variables_kept, monkeypatch,
                                                                       worded):
    environment(**OPEN_MPI)
    monkeypatch.setattr("hvdscale.sweep.groups.load_horovod", lambda *given: Unjoined())
    monkeypatch.setattr("hvdscale.sweep.groups._begin_mpi", lambda hvd: Unjoined())
    with worded.error(WorkersError):
        form_group(2, 60, CORES)


@pytest.mark.parametrize("missing, said", [("horovod", "Horovod cannot be imported"), ("mpi4py", "pip install mpi4py")])
def test_groups_of_several_need_horovod_and_mpi4py(environment, variables_kept, monkeypatch, missing, said):
    environment(**OPEN_MPI)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "horovod":
        monkeypatch.setitem(sys.modules, "horovod.torch", None)
    else:
        monkeypatch.setattr("hvdscale.sweep.groups.load_horovod", lambda *given: Unjoined())
    with pytest.raises(WorkersError, match=said):
        form_group(2, 60, CORES, "horovod")


def test_the_first_process_gives_the_exit_code_once_the_others_are_gone(environment, monkeypatch):
    monkeypatch.setattr("hvdscale.sweep.groups.POLL_SECONDS", 0)
    answers = [True, False, False]
    environment(**{**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert leave(form_group(1, 60, CORES), 75, answers.pop) == 75 and not answers
    environment(**OPEN_MPI)
    assert leave(form_group(1, 60, CORES), 75, lambda: False) == 0
