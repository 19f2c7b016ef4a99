"""One job by both transports, Horovod and torch.distributed: the same updates, and each resumes the other's run."""
import json
import re
import sys

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from tests.conftest import launcher_command
from tests.parallel import toy
from tests.parallel.test_ports import listening
from tests.parallel.test_trajectory import CONFIGURATIONS, norm_of_difference

GIVEN = [*CONFIGURATIONS[::6], dict(steps=20, precision="fp64", global_batch=24, bucket_mib=1e-4)]
ALONE = "import sys; sys.modules.update(dict.fromkeys({without})); from hvdscale.cli.train import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize("np_", [1, 2, 3, 4])
def test_both_transports_make_the_same_updates(launch, np_):
    """Those of one worker, as test_trajectory has it of Horovod's."""
    torch, horovod = (launch(toy.trajectories, np_, GIVEN, launcher) for launcher in ("torchrun", "mpirun"))
    assert all(rank == torch[0] for rank in torch)
    for configuration, got, reference in zip(GIVEN, torch[0], horovod[0]):
        if np_ <= 2:
            assert got == reference                                     # to the last bit
        for what in (1, 2):
            assert norm_of_difference(got, reference, what) <= 1e-10, configuration
        np.testing.assert_allclose(got[0], reference[0], rtol=1e-9)


@pytest.mark.parametrize("launcher, missing, settings, said", [
    pytest.param("torchrun", ("horovod", "mpi4py"), [], "torch.distributed", marks=pytest.mark.slow),
    ("mpirun", ("horovod", "mpi4py"), [], "torch.distributed"),
    pytest.param("mpirun", (), ["--set", "transport=torch"], "torch", marks=pytest.mark.slow),
    pytest.param("mpirun", ("horovod",), [], "torch.distributed", marks=pytest.mark.slow),
    pytest.param("mpirun", (), [], "Horovod", marks=pytest.mark.slow),
    pytest.param("gloo", (), ["--set", "transport=horovod"], "Horovod", marks=pytest.mark.slow)])
def test_the_transport_is_what_the_launcher_and_the_installation_allow(
        run, tmp_path, launcher, missing, settings, said):
    done = run(*launcher_command(launcher, 2), sys.executable, "-c", ALONE.format(without=missing), "digits/fc",
               "--log-file", "w.h5", "--steps", "5", *settings)
    assert re.search(rf"  workers +2 on cpu, 1 thread each\n.*  transport +{said}", done.stdout)
    with read_log(tmp_path / "w.h5") as log:
        execution = json.loads(log.trials["plan"][0])["execution"]
        assert (execution["transport"], execution["workers"]) == ("horovod" if said == "Horovod" else "torch", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["w.h5"]


def addresses(workers, _):
    """The addresses at which this process listens, in hexadecimal, reversed."""
    return [found.partition(":")[0] for found in listening("self")], workers.gather("here", "all")


def test_workers_on_one_host_listen_on_loopback_alone(launch):
    for at, everyone in launch(addresses, 2, TRANSPORT="torch"):
        assert at and set(at) == {"0100007F"} and everyone == ["here", "here"]
