"""The guide of tools/port: the script before and the job after run as written, and are one problem."""
import re
import shutil
import sys

import numpy as np
import pytest
import torch

from hvdscale.log.reader import read_log
from hvdscale.training.prepare import prepare
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from tests import guides
from tests.conftest import ROOT, launcher_command

GUIDE = ROOT / "tools/port/README.rst"


@pytest.fixture
def port(tmp_path, monkeypatch):
    """The script's module, in a copy of the folder that is the working directory."""
    for name in ("ddp_before.py", "job.py"):
        shutil.copy(GUIDE.parent / name, tmp_path)
        monkeypatch.delitem(sys.modules, name[:-3], raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    threads = torch.get_num_threads()
    import ddp_before
    yield ddp_before
    torch.set_num_threads(threads)


def without_dropout(model):
    for module in model.modules():
        if "Dropout" in type(module).__name__:
            module.p = 0.0
    return model


def test_the_job_takes_the_steps_of_the_script_on_the_same_examples(port):
    job = prepare("job:workload", [{"precision": "fp64", "threads": 1, "global_batch": 32}], SingleWorker())
    model = without_dropout(port.Net().double())
    model.load_state_dict(job.model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), job.plan.peak_lr, momentum=0.9, weight_decay=1e-4)
    take_step = DataParallelStep(job.plan, job.workload, job.data.train, without_dropout(job.model), job.optimizer,
                                 SingleWorker(), job.device)
    seen = []
    for number in range(45):                                            # into the second epoch
        visits = job.plan.stream.visits(number, 0, 32)
        seen += visits.indices.tolist()
        batch = job.data.train.take(visits)
        loss = port.step(model, optimizer, {"image": batch["image"].double(), "digit": batch["digit"]})
        assert take_step(number, job.plan.peak_lr, set()).loss == pytest.approx(loss, rel=1e-10)
    for mine, theirs in zip(job.model.parameters(), model.parameters()):
        np.testing.assert_allclose(mine.detach(), theirs.detach(), rtol=0, atol=1e-12)
    assert sorted(seen[:1197]) == list(range(1197))


@pytest.mark.slow
def test_the_commands_of_the_guide_run_and_come_to_the_same_loss(port, run, tmp_path):
    launcher_command("horovodrun", 1)
    before, *after = [run(*each.command.split()) for each in guides.typed("tools/port/README.rst")]
    [nats] = re.findall(r"epoch 2: val cross_entropy (\S+)", before.stdout)
    measured = []
    for name in ("w2.h5", "w3.h5"):
        with read_log(tmp_path / name) as log:
            measured.append(log.evaluations["val/cross_entropy"][-1])
    assert len(after) == 2 and measured[0] == pytest.approx(float(nats), rel=0.4)
    assert measured[1] == pytest.approx(measured[0], rel=1e-3)          # rounding alone
    for saved in ("model.pt", "ddp_model.pt"):                          # each other's
        port.Net().load_state_dict(torch.load(tmp_path / saved, weights_only=True))
