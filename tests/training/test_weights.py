"""State dicts: what --init-from starts from, and what --save-model leaves behind."""
import hashlib
import json

import pytest
import torch

from hvdscale.errors import CheckpointError, UsageError
from hvdscale.training.display import NoDisplay
from hvdscale.training.loop import train
from hvdscale.training.prepare import prepare
from hvdscale.training.run_log import NoLog
from hvdscale.plan.settings import Settings
from hvdscale.training.outputs import refuse_outputs
from hvdscale.training.checkpoint import load_weights, refuse_unwritable, save_weights
from hvdscale.workers.group import SingleWorker
from tests.parallel import toy

JOB = "tests.parallel.toy:WORKLOAD"


def trained(**keys):
    job = prepare(JOB, [{"threads": 1, "eval_every": 0, "noise_every": 0, **keys}], SingleWorker())
    outcome = train(job, NoLog(), NoDisplay(), SingleWorker())
    job.save_model(outcome.stop, SingleWorker())
    return job, outcome


def test_a_run_goes_on_from_the_model_that_another_saved(tmp_path):
    path = str(tmp_path / "model.pt")
    first, _ = trained(steps=5, save_model=path)
    saved = torch.load(path, weights_only=True)
    assert saved.keys() == first.model.state_dict().keys()
    assert all(torch.equal(values, saved[name]) for name, values in first.model.state_dict().items())
    second = prepare(JOB, [{"steps": 5, "threads": 1, "init_from": path, "seed": 7}], SingleWorker())
    assert all(torch.equal(values, saved[name]) for name, values in second.model.state_dict().items())
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.pt"]


def test_the_state_dict_started_from_is_part_of_the_problem_wherever_it_lies(tmp_path):
    for name, seed in [("a.pt", 1), ("b.pt", 2)]:
        torch.manual_seed(seed)
        save_weights(toy.Net(), str(tmp_path / name))
    (tmp_path / "copy.pt").write_bytes((tmp_path / "a.pt").read_bytes())
    plans = [prepare(JOB, [{"threads": 1, "init_from": str(tmp_path / name)}], SingleWorker()).plan
             for name in ("a.pt", "b.pt", "copy.pt")]
    assert plans[0].init_from == hashlib.sha256((tmp_path / "a.pt").read_bytes()).hexdigest()
    assert plans[0] == plans[2] != plans[1]
    assert "init_from" in json.loads(json.dumps(plans[0].as_record({})))["problem"]


@pytest.mark.parametrize("given, said", [
    ({}, "it has no layers.0.bias, layers.0.weight, layers.4.bias, layers.4.weight$"),
    ({"extra": torch.zeros(1)}, "it has extra, which the model lacks$"),
    ({"layers.4.bias": torch.zeros(4)}, r"it has other shapes: layers.4.bias \(4,\) where the model has \(5,\)$"),
    ({f"layers.{i}.scale": torch.zeros(1) for i in range(11)}, "and 3 more, which the model lacks$"),
    (None, r"DistributedDataParallel adds the prefix module.: save its .module.state_dict\(\)")])
def test_names_and_shapes_that_do_not_match_are_listed(tmp_path, given, said, worded):
    path, model = str(tmp_path / "m.pt"), toy.Net()
    own = model.state_dict()
    state = {f"module.{name}": values for name, values in own.items()} if given is None else given and {**own, **given}
    torch.save(state, path)
    with worded.error(UsageError):
        load_weights(model, path)


class Own:
    pass


@pytest.mark.parametrize("content", [b"", b"no file of torch's", [1, 2], {"state_dict": {}}, Own()])
def test_a_file_that_is_no_plain_state_dict_is_not_loaded(tmp_path, content, worded):
    path = tmp_path / "m.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with worded.error(UsageError):
        load_weights(toy.Net(), str(path))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="/none/m.pt: cannot be read: No such file"):
        prepare(JOB, [{"init_from": "/none/m.pt"}], SingleWorker())


def test_a_place_that_cannot_be_written_is_refused_before_the_training(tmp_path, worded):
    with worded.error(UsageError):
        refuse_outputs(Settings(save_model="/none/m.pt"), SingleWorker())
    with pytest.raises(UsageError, match="is a folder"):
        refuse_unwritable(str(tmp_path))
    with pytest.raises(CheckpointError, match="/none/m.pt: cannot be written"):
        save_weights(toy.Net(), "/none/m.pt")
