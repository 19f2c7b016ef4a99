import shutil
from functools import partial
from io import StringIO

import pytest
import torch

from hvdscale.cli.train import _run
from hvdscale.training.display import Display
from hvdscale.workers.group import SingleWorker
from tests.factories.runs import KEYS, WORKLOAD, Signalled


@pytest.fixture
def signalled(tmp_path, monkeypatch):
    """Runs in tmp_path take steps that can signal; torch's threads are afterwards as before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hvdscale.training.prepare.DataParallelStep", Signalled)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def train(signalled, monkeypatch):
    """Train the toy workload in tmp_path under these keys, with a signal at a step; gives the exit code. What the last
    run displayed is ``train.said()``."""
    def train(signal_at=-1, workload=WORKLOAD, dry_run=False, **keys):
        monkeypatch.setattr("hvdscale.training.prepare.find", lambda name: workload)
        monkeypatch.setattr(Signalled, "at", signal_at)
        said = StringIO()
        monkeypatch.setattr("hvdscale.training.outputs.Display", partial(Display, out=said))
        train.said = said.getvalue
        keys = {**KEYS, "checkpoint": "ck", "log": "w.h5", "resume": "auto", **keys}
        keys = {name: value for name, value in keys.items() if value is not None}
        return _run("toy/net", [{}, keys], dry_run, SingleWorker())
    return train


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where the uninterrupted run is kept."""
    return tmp_path_factory.mktemp("kept") / "whole"


@pytest.fixture
def whole(train, kept, tmp_path):
    """The uninterrupted run of ``train()``, made once: its checkpoints in whole/ and its log in whole.h5."""
    if not kept.exists():
        assert train(checkpoint="whole", log="whole.h5") == 0
        kept.mkdir()
        shutil.copytree(tmp_path / "whole", kept / "whole")
        shutil.copy(tmp_path / "whole.h5", kept)
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
