"""hvdscale-train and hvdscale-tune count the workers and the cores of a host alike, however the launcher binds them."""
import json
import re
import shutil
import sys

import pytest
from click.testing import CliRunner

from hvdscale.cli.report import main as report
from hvdscale.log.reader import read_log
from hvdscale.system.cores import usable_cores
from tests.conftest import LAUNCHERS, launcher_command
from tests.parallel.conftest import two_nodes
from tests.parallel.sweeps import TUNE, sweep_file

TWO = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
LAUNCHES = {**{name: launcher(2) for name, launcher in LAUNCHERS.items()},
            "mpirun, bound": ["mpirun", "--bind-to", "core", "-np", "2"],
            "mpirun, as it is": ["mpirun", "-np", "2"],
            "mpirun, one core": ["taskset", "-c", str(min(usable_cores())), "mpirun", "--bind-to", "none", "-np", "2"]}
TRAIN = (sys.executable, "-m", "hvdscale.cli.train", "digits/fc", "--steps", "2", "--log-file", "out/train.h5")
# a mark on both sides, as a launcher may drop the end of a line between two processes
CORES = "import os; print(*(f'<{core}>' for core in os.sched_getaffinity(0)), flush=True)"


def cores_in(output):
    """The cores that processes have printed, one entry a process and core."""
    return re.findall(r"<(\d+)>", output)


def executions(out):
    """Of each trial in the folder's logs its workers, workers on the host, and cores there."""
    found = []
    for path in sorted(out.glob("*.h5")):
        with read_log(path) as log:
            found += [tuple(json.loads(plan)["execution"][name] for name in ("workers", "local_workers", "cores"))
                      for plan in log.trials["plan"]]
    return found


@TWO
@pytest.mark.slow                       # test_tune looks at the cores of a sweep
@pytest.mark.parametrize("launch", [
    "mpirun, one core", "mpirun, as it is", "horovodrun", "mpirun", "mpirun, bound", "gloo"])
def test_two_workers_are_held_against_all_the_cores_that_they_have(run, tmp_path, launch):
    launcher_command("horovodrun" if launch == "gloo" else launch.split(",")[0], 2)
    if launch == "mpirun, one core" and shutil.which("taskset") is None:
        pytest.skip("needs taskset")
    command = LAUNCHES[launch]
    cores = len(set(cores_in(run(*command, sys.executable, "-c", CORES).stdout)))
    assert cores == 1 if launch == "mpirun, one core" else cores >= 2
    run(*command, *TUNE, sweep_file(tmp_path, batch_sizes="[64]", trials=2, steps=4, evaluations=2), "--out", "out")
    run(*command, *TRAIN)
    assert set(executions(tmp_path / "out")) == {(1, 2, cores), (2, 2, cores)}
    reported = CliRunner().invoke(report, [str(tmp_path / "out"), "--full"]).output
    assert re.findall(r"(\d)# ", reported) == (["2", "2", "1"] if cores == 1 else []), reported


@TWO
@pytest.mark.slow
def test_a_group_of_two_counts_the_cores_of_the_other_groups(run, tmp_path):
    launcher_command("mpirun", 2)
    bound = ["mpirun", "--oversubscribe", "--bind-to", "core:overload-allowed", "-np", "4"]
    cores = len(set(cores_in(run(*bound, sys.executable, "-c", CORES).stdout)))
    sweep = sweep_file(tmp_path, batch_sizes="[64]", trials=2, steps=4, evaluations=2, workers_per_trial=2)
    run(*bound, *TUNE, sweep, "--out", "out")
    assert set(executions(tmp_path / "out")) == {(2, 4, cores)}


@pytest.fixture(scope="module")
def binding():
    """A cluster whose one node binds tasks to cores."""
    with two_nodes(nodes=1, settings="TaskPlugin=task/affinity\n") as cluster:
        yield cluster


@TWO
@pytest.mark.slow
@pytest.mark.parametrize("bind", ["cores", "none"])
def test_tasks_of_srun_are_held_against_all_the_cores_that_they_have(binding, tmp_path, bind):
    command = ["srun", "--mpi=pmix", f"--cpu-bind={bind}", "-n2", "-c1"]
    tried = binding.run(*command, sys.executable, "-c", CORES, check=False)
    cores = len(set(cores_in(tried.stdout)))
    if tried.returncode or len(cores_in(tried.stdout)) != (2 if bind == "cores" else 2 * cores):
        pytest.skip(f"this Slurm does not bind tasks so: {tried.stdout}{tried.stderr}")
    sweep = sweep_file(tmp_path, batch_sizes="[64]", trials=2, steps=4, evaluations=2)
    binding.run(*command, *TUNE, sweep, "--out", "out", cwd=tmp_path, timeout=300)
    binding.run(*command, *TRAIN, cwd=tmp_path, timeout=300)
    assert set(executions(tmp_path / "out")) == {(1, 2, cores), (2, 2, cores)}
