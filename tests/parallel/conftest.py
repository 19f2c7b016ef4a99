"""A Slurm cluster, and a checkout whose templates it runs."""
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, command_environment, lacks
from tests.minislurm import MiniSlurm, missing


def two_nodes(**options):
    """A cluster of two nodes with two cores each, to be entered; options as MiniSlurm has them."""
    if missing():
        lacks("slurm", f"needs {', '.join(missing())} (Debian: apt install slurmctld slurmd slurm-client munge)")
    return MiniSlurm(**{"nodes": 2, "cpus": 2, "environment": command_environment(), **options})


STEADY = "SlurmdTimeout=300\nMessageTimeout=100\n"       # no node is lost where the machine stands still for a minute


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(settings=STEADY) as cluster:
        yield cluster


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a space in its name: the templates, and a .venv beside that runs our commands."""
    checkout = tmp_path / "a clone"
    (checkout / ".venv/bin").mkdir(parents=True)
    shutil.copytree(ROOT / "slurm", checkout / "slurm")
    for name in ("train", "tune", "scale", "report"):
        command = checkout / f".venv/bin/hvdscale-{name}"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hvdscale.cli.{name} "$@"\n')
        command.chmod(0o755)
    return checkout


@pytest.fixture
def pmix(cluster):
    """srun --mpi=pmix, tried."""
    tried = cluster.run("srun", "--mpi=pmix", "true", check=False)
    if tried.returncode:
        lacks("slurm", f"srun --mpi=pmix needs PMIx (Debian 12: apt install libpmix-dev): {tried.stderr}")


@pytest.fixture
def tmp_path(request, tmp_path):
    """On the disk where there is a cluster, whose nodes have a /dev/shm of their own."""
    if not {"cluster", "machines", "binding"} & set(request.fixturenames):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="pytest-", dir="/tmp") as folder:
        yield Path(folder)
