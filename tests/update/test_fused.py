"""The fused optimizers: torch.optim's updates and checkpoints, without its compiler."""
import subprocess
import sys

import pytest
import torch
from torch import nn

from hvdscale.update.optimizers import SGD, Adam, AdamW, fusible, make_optimizer
from tests.factories.plans import settled

PAIRS = [(SGD, torch.optim.SGD, dict()), (SGD, torch.optim.SGD, dict(momentum=0.9)),
         (SGD, torch.optim.SGD, dict(momentum=0.9, nesterov=True)),
         (Adam, torch.optim.Adam, dict(betas=(0.8, 0.99), eps=1e-6)), (AdamW, torch.optim.AdamW, dict())]


def model_of(dtype=torch.float64):
    """Weights whose number is no multiple of a vector's width, a convolution channels last, a scalar."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(5, 7), nn.PReLU(1)).to(dtype)
    model.scale = nn.Parameter(torch.ones((), dtype=dtype))
    return model.to(memory_format=torch.channels_last)


def groups(model):
    parameters = list(model.parameters())
    return [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "weight_decay": 0.0}]


def take(optimizer, model, steps):
    inputs = torch.randn(4, 3, 3, 3, dtype=next(model.parameters()).dtype)
    for step in range(steps):
        optimizer.zero_grad()
        (model(inputs).square().sum() * model.scale).backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        optimizer.step()


@pytest.mark.parametrize("ours, torchs, keys", PAIRS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_updates_are_those_of_torch(ours, torchs, keys, dtype, tolerance):
    models = model_of(dtype), model_of(dtype)
    for model, kind in zip(models, (ours, torchs)):
        torch.manual_seed(1)
        take(kind(groups(model), lr=0.01, **keys), model, 5)
    for p, q in zip(*(model.parameters() for model in models)):
        assert p.stride() == q.stride()
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ours, torchs, keys", PAIRS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_state_saved_by_one_is_resumed_by_the_other(ours, torchs, keys, reverse):
    whole, cut = model_of(), model_of()
    first, second = (torchs, ours) if reverse else (ours, torchs)
    for model, kinds in ((whole, [first, first]), (cut, [first, second])):
        state = None
        for kind in kinds:
            optimizer = kind(groups(model), lr=0.01, **keys)
            if state is not None:
                optimizer.load_state_dict(state)
            torch.manual_seed(1)
            take(optimizer, model, 3)
            state = optimizer.state_dict()
    for p, q in zip(whole.parameters(), cut.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-14, atol=1e-14)


def test_a_state_of_other_groups_is_refused(worded):
    saved = SGD([{"params": [nn.Parameter(torch.ones(2))]}], lr=0.1).state_dict()
    with worded.error(ValueError):
        SGD(groups(model_of()), lr=0.1).load_state_dict(saved)


def test_parameters_with_gaps_between_their_values_are_updated_by_torch():
    model = nn.Linear(4, 3)
    assert fusible(model.parameters()) and type(make_optimizer(settled(), model)) is SGD
    model.weight = nn.Parameter(torch.ones(3, 8)[:, ::2])
    assert not fusible(model.parameters())
    optimizer = make_optimizer(settled(), model)
    assert type(optimizer) is torch.optim.SGD
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert (model.weight < 1).all()


def test_no_step_imports_the_compiler_of_torch_or_sympy():
    """They take longer to import than a small job trains."""
    code = ("import sys; from tests.parallel import toy; from hvdscale.update.model import make_model; import torch\n"
            "from hvdscale.update.step import DataParallelStep; from hvdscale.update.optimizers import make_optimizer\n"
            "from hvdscale.workers.group import SingleWorker\n"
            "for name in ('sgd', 'nesterov', 'adam', 'adamw', 'lars', 'lamb'):\n"
            "    plan, cpu = toy.settled(1, optimizer=name), torch.device('cpu')\n"
            "    model = make_model(toy.WORKLOAD, plan, cpu)\n"
            "    optimizer = make_optimizer(plan, model)\n"
            "    step = DataParallelStep(plan, toy.WORKLOAD, toy.load().train, model, optimizer, SingleWorker(), cpu)\n"
            "    step(0, 0.1, set()), optimizer.load_state_dict(optimizer.state_dict())\n"
            "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
