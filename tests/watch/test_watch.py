"""Watching: a script can call what was replaced as it would, listeners are told what happens, and all is put back."""
import inspect
import os
import random
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdscale.watch.generators import OWN, moved_since, snapshot
from hvdscale.watch.lines import SYMPY
from hvdscale.watch.listener import Listener
from hvdscale.watch.patches import Patches
from hvdscale.watch.rank import watching

ANY = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class Heard(Listener):
    def __init__(self):
        self.names, self.told = [], {}

    def __getattr__(self, name):
        return lambda *told: (self.names.append(name), self.told.update({name: told}))[0]


@pytest.fixture
def heard():
    heard = Heard()
    with watching([heard]):
        yield heard


def signature(callable_, follow):
    try:
        return inspect.signature(callable_, follow_wrapped=follow)
    except ValueError:
        return None


def own_parameters(one):
    """The parameters that the replacement itself names, but for the object of a method."""
    named = [each for each in signature(one.replacement, False).parameters.values() if each.kind not in ANY]
    return [each.name for each in named[inspect.isclass(one.owner):]]


class Replaced(NamedTuple):
    owner: object
    name: str
    original: object
    replacement: object


@pytest.fixture
def replaced(monkeypatch):
    """What patches replace from now on."""
    found, put = [], Patches.put

    def noting(patches, owner, name, replacement):
        found.append(Replaced(owner, name, getattr(owner, name), replacement))
        put(patches, owner, name, replacement)
    monkeypatch.setattr(Patches, "put", noting)
    return found


def test_every_replacement_has_the_signature_of_its_original(replaced):
    with watching([Listener()]):
        import horovod.torch  # noqa: F401  its calls are replaced when it is imported
        import torch.distributed.fsdp  # noqa: F401  likewise
    assert len(replaced) > 60 and any(one.name == "allreduce" for one in replaced)
    for one in replaced:
        original = signature(one.original, True)
        assert signature(one.replacement, True) == original, one
        if original is not None and not inspect.isclass(one.original):
            names = list(original.parameters)[inspect.isclass(one.owner):]
            own = own_parameters(one)
            assert own == names[:len(own)], one
            kinds = {each.kind for each in signature(one.replacement, False).parameters.values()}
            assert own == names or ANY[0] in kinds, one


def test_everything_is_put_back(replaced):
    before = {(id(owner), name): getattr(owner, name) for owner, name in (
        (torch.autograd, "backward"), (torch.nn.Module, "__call__"), (torch, "Generator"), (random.Random, "random"),
        (torch.nn.utils, "clip_grad_norm_"), (np.random, "default_rng"))}
    with watching([Listener()]):
        assert torch.distributed.isend is torch.distributed.distributed_c10d.isend      # P2POp takes no other function
        newest = {(id(one.owner), one.name): one for one in replaced}       # some are replaced twice
        assert newest and all(getattr(one.owner, one.name) is one.replacement for one in newest.values())
    oldest = {(id(one.owner), one.name): one for one in reversed(replaced)}
    assert all(getattr(one.owner, one.name) is one.original for one in oldest.values())
    assert {key: getattr(one.owner, one.name) for one in replaced for key in [(id(one.owner), one.name)]
            if key in before} == before


def test_an_update_is_told_in_the_order_in_which_it_happens(heard):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    heard.names.clear()
    torch.func.grad(lambda weight: nn.functional.mse_loss(torch.func.functional_call(      # of no values: untold
        model, {"weight": weight}, torch.ones(1, 3)), torch.ones(1, 2)))(model.weight.detach())
    for inputs, targets in DataLoader(TensorDataset(torch.randn(4, 3), torch.randint(2, (4,))), 4):
        nn.functional.cross_entropy(model(inputs), targets).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-3)
        optimizer.step()
    assert heard.names == ["iteration_begins", "batch_wanted", "reading", "examples", "reading", "batch",
                           "forward_begins", "loss", "pass_begins", "gradient", "gradient", "pass_ends", "clipping",
                           "clipped", "step_begins", "writes", "step_ends", "batch_wanted", "iteration_ends"]
    assert heard.told["clipped"][1:3] == (float(norm), 1e-3)
    assert all(__file__.endswith(heard.told[name][-1].rpartition(":")[0].rpartition("/")[2])
               for name in ("pass_ends", "clipped", "step_begins"))


class Written(Listener):
    """Keeps the parameters and gradients at each write."""

    def __init__(self, model):
        self.model, self.evaluated, self.parameters, self.gradients = model, [], [], []

    def writes(self, optimizer, evaluated):
        self.evaluated.append(evaluated)
        self.parameters.append(self.model.weight.detach().clone())
        self.gradients.append(self.model.weight.grad.clone())


@pytest.mark.parametrize("kind, given", [("SGD", {}), ("LBFGS", {"max_iter": 3})])
def test_a_closure_is_evaluated_before_the_parameters_are_written(kind, given):
    model, first = nn.Linear(3, 1), []
    start, written = model.weight.detach().clone(), Written(model)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **given)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().mean()
        loss.backward()
        first.append(model.weight.grad.clone())
        return loss
    with watching([written]):
        optimizer.step(closure)
    assert written.evaluated[0] and torch.equal(written.parameters[0], start)
    assert torch.equal(written.gradients[0], first[0]) and not torch.equal(model.weight, start)


def test_a_generator_of_the_scripts_own_is_seen_to_draw(heard):
    for make, draw in ((torch.Generator, lambda one: torch.rand(1, generator=one)),
                       (lambda: np.random.default_rng(0), lambda one: one.random()),
                       (lambda: np.random.RandomState(0), lambda one: one.rand()),
                       (lambda: random.Random(0), lambda one: one.shuffle([1, 2, 3]))):
        generator = make()
        before = snapshot()
        assert OWN not in moved_since(before)
        draw(generator)
        assert moved_since(before) == {OWN}
    before = snapshot()
    random.random()
    assert moved_since(before) == {"random"} and isinstance(torch.default_generator, torch.Generator)


def test_a_compilation_draws_from_no_generator_of_the_scripts_own(heard):
    before = snapshot()
    exec(compile("random.Random(0).random()", os.path.join(SYMPY, "core/symbol.py"), "exec"), {"random": random})
    assert OWN not in moved_since(before)


def test_a_module_that_is_imported_later_is_patched_then(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with watching([Listener()]) as watch:
        watch.patches.when_imported("imported_later", lambda module: watch.patches.replace(
            module, "answer", lambda original: lambda *args, **options: original() + 1))
        import imported_later
        assert imported_later.answer() == 2
    assert imported_later.answer() == 1


@pytest.fixture
def wrapper(tmp_path, monkeypatch):
    """Make a module that the next import finds."""
    def make(name, text):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield make
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


GPUS = torch.cuda.is_available()
CONNECTOR = """
class _Connector:
    def __init__(self, accelerator="auto", strategy="auto", devices="auto", num_nodes=1):
        self.asked, self.accelerator = (devices, num_nodes), accelerator
"""


def test_lightning_has_the_devices_of_the_run_whatever_it_asks_for(wrapper):
    wrapper("lightning.fabric.connector", CONNECTOR)
    heard = Heard()
    with watching([heard], local_workers=2, workers=4):
        from lightning.fabric.connector import _Connector
        assert _Connector(devices=8).asked == (2, 2) and _Connector().asked == (2, 2)
        assert heard.told["remark"] == (
            "Lightning's devices='auto' and num_nodes=1 were 2 and 2, as the run has 4 in all",)
        assert _Connector("gpu").accelerator == ("gpu" if GPUS else "cpu")


@pytest.mark.skipif(GPUS, reason="with a GPU nothing is redirected")
def test_accelerate_joins_workers_on_the_cpu_where_there_is_no_gpu(wrapper):
    wrapper("accelerate.state", "class PartialState:\n    def __init__(self, cpu=False, **kwargs):\n"
            "        self.given = cpu, kwargs\n")
    with watching([Heard()]):
        from accelerate.state import PartialState
        assert [PartialState().given, PartialState(False, backend="x").given, PartialState(cpu=False).given] == [
            (True, {}), (True, {"backend": "x"}), (True, {})]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_torchs_scripts_compile_as_without_the_watch():
    def scores(inputs: torch.Tensor, targets: torch.Tensor):
        return nn.functional.cross_entropy(inputs + torch.zeros_like(inputs), targets) + torch.ones(3).sum()
    given = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    with watching([Listener()]):
        assert torch.jit.script(scores)(*given) == scores(*given)
    assert torch.jit.script(scores)(*given) == scores(*given)
