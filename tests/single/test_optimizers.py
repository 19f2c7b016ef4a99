"""Updates: momentum under a changing learning rate, weight decay, uneven workers, and optimizers of any module."""
import pytest
import torch
from torch import nn

from hvdscale.errors import UsageError
from hvdscale.optimizers import make_optimizer, parameter_groups
from hvdscale.step import DataParallelStep
from hvdscale.train import make_model
from tests.parallel import toy
from tests.single.made_plans import settled
from tests.single.made_workers import on_each

GRADIENTS = [1.0, -0.5, 2.0, 0.25, -1.0, 0.5]
RATES = [0.1, 0.1, 0.8, 0.8, 0.08, 0.08]             # a jump up by the batch ratio, a step down


def updated(optimizer_name, **keys):
    """A weight of 1 after an update for each gradient at each rate."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    optimizer = make_optimizer(settled(optimizer=optimizer_name, **keys), model)
    for gradient, lr in zip(GRADIENTS, RATES):
        model.weight.grad = torch.full_like(model.weight, gradient)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return model.weight.item()


def rate_outside(momentum, nesterov=False):
    """v <- m v + g, w <- w - lr v."""
    w, v = 1.0, 0.0
    for g, lr in zip(GRADIENTS, RATES):
        v = momentum * v + g
        w -= lr * (g + momentum * v if nesterov else v)
    return w


def rate_inside(momentum, corrected):
    """v <- m v + lr g, w <- w - v; corrected: m times the ratio of the rates (Goyal et al. 2017, equation 10)."""
    w, v, before = 1.0, 0.0, RATES[0]
    for g, lr in zip(GRADIENTS, RATES):
        v = momentum * (lr / before if corrected else 1) * v + lr * g
        w, before = w - v, lr
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_after_a_jump_of_the_rate_momentum_needs_no_correction(momentum):
    """The form with the rate outside the velocity equals the corrected form with the rate inside."""
    ours = updated("momentum", momentum=momentum)
    assert ours == pytest.approx(rate_outside(momentum), rel=1e-12)
    assert ours == pytest.approx(rate_inside(momentum, corrected=True), rel=1e-12)
    assert (ours == pytest.approx(rate_inside(momentum, corrected=False), rel=1e-3)) == (momentum == 0)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_nesterov_looks_ahead_by_the_momentum(momentum):
    assert updated("nesterov", momentum=momentum) == pytest.approx(rate_outside(momentum, nesterov=True), rel=1e-12)


def test_sgd_has_no_momentum_whatever_the_key_says():
    assert updated("sgd") == pytest.approx(1 - sum(g * lr for g, lr in zip(GRADIENTS, RATES)), rel=1e-12)


class Normed(nn.Module):
    """A convolution and a batch norm, a linear layer, and a scale of no dimension."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("all_decay, decaying", [
    (False, {"conv.weight", "linear.weight"}),
    (True, {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "linear.weight", "linear.bias", "scale"})])
def test_weight_decay_keeps_off_biases_and_norms_unless_asked(all_decay, decaying):
    model = Normed()
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(settled(weight_decay=1e-3, decay_norm_and_bias=all_decay), model)
    by_decay = {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in groups}
    assert by_decay.get(1e-3) == decaying
    assert by_decay.get(0.0, set()) == set(names.values()) - decaying


def test_a_frozen_parameter_is_left_to_itself():
    model = Normed()
    model.conv.weight.requires_grad_(False)
    parameters = [p for group in parameter_groups(settled(), model) for p in group["params"]]
    assert all(p is not model.conv.weight for p in parameters) and len(parameters) == 6


def test_without_a_gradient_a_weight_shrinks_by_rate_times_decay():
    model = nn.Linear(2, 2).double()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(settled(optimizer="sgd", lr=0.5, weight_decay=0.1), model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before[0] * (1 - 0.5 * 0.1), rtol=1e-14, atol=0)
    assert torch.equal(model.bias, before[1])


# global batch, ghost batch: shares even and uneven, of whole groups and of single examples
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
@pytest.mark.parametrize("batch, ghost", [(24, 4), (22, 4), (7, 4)])
@pytest.mark.parametrize("bucket_mib", [0.0, 1e-4])
def test_more_workers_at_the_same_global_batch_make_the_same_updates_with_decay(workers, batch, ghost, bucket_mib):
    """Three updates at rates that jump, momentum and weight decay included."""
    keys = dict(precision="fp64", global_batch=batch, ghost_batch=ghost, weight_decay=0.1, model_args={"dropout": 0.5})

    def updates(members, **keys):
        plan = toy.settled(members, **keys)
        models = [make_model(toy.WORKLOAD, plan, torch.device("cpu")) for _ in range(members)]
        train = toy.load().train

        def steps(member):
            model = models[member.rank]
            step = DataParallelStep(plan, toy.WORKLOAD, train, model, make_optimizer(plan, model), member,
                                    torch.device("cpu"))
            loss = [step(i, lr, set()).loss for i, lr in enumerate([0.1, 0.8, 0.2])]
            return loss, torch.cat([p.detach().flatten() for p in model.parameters()])
        return on_each(members, steps)

    (loss, reference), = updates(1, **keys)
    for got_loss, got in updates(workers, bucket_mib=bucket_mib, **keys):
        assert got_loss == pytest.approx(loss, rel=1e-12)
        assert (got - reference).norm() <= 1e-12 * reference.norm()


# optimizers of any module

def test_a_class_of_torch_is_taken_with_its_arguments():
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    plan = settled(optimizer="torch.optim:Adam", lr=0.01, weight_decay=0.1, optimizer_args={"betas": [0.5, 0.75]})
    ours = make_optimizer(plan, model)
    groups = [{"params": [twin.weight], "weight_decay": 0.1}, {"params": [twin.bias]}]
    theirs = torch.optim.Adam(groups, lr=0.01, betas=(0.5, 0.75))
    assert type(ours) is torch.optim.Adam
    for m, optimizer in ((model, ours), (twin, theirs)):
        for _ in range(3):
            optimizer.zero_grad()
            m(torch.ones(4, 3)).square().sum().backward()
            optimizer.step()
    assert torch.equal(model.weight, twin.weight) and torch.equal(model.bias, twin.bias)


@pytest.mark.parametrize("name, said", [
    ("adam", "optimizer 'adam' is none of sgd, momentum, nesterov, and not module:Class such as torch.optim:Adam"),
    ("SGD", "optimizer 'SGD' is none of sgd"),
    ("torch.optim:Adamant", "optimizer 'torch.optim:Adamant' cannot be imported: .*Adamant"),
    ("torch.optim:", "optimizer 'torch.optim:' cannot be imported"),
    ("not_a_package:Adam", "optimizer 'not_a_package:Adam' cannot be imported: No module named 'not_a_package'"),
    (":Adam", "optimizer ':Adam' cannot be imported"),
    (".optim:Adam", "optimizer '.optim:Adam' cannot be imported"),
    ("torch:optim", "optimizer 'torch:optim' does not take lr"),
    ("torch.optim:LBFGS", "optimizer 'torch.optim:LBFGS' does not take lr .*per-parameter"),
])
def test_a_name_that_leads_to_no_optimizer_is_named(name, said):
    with pytest.raises(UsageError, match=said):
        make_optimizer(settled(optimizer=name), nn.Linear(2, 2))


@pytest.mark.parametrize("arguments, said", [
    ({"beta": 0.9}, r"does not take lr and optimizer_args = {'beta': 0.9}: .*beta"),
    ({"lr": 0.9}, "multiple values"), ({"betas": [0.9, 1.5]}, "1.5")])
def test_arguments_that_the_class_does_not_take_are_named(arguments, said):
    with pytest.raises(UsageError, match=said):
        make_optimizer(settled(optimizer="torch.optim:Adam", optimizer_args=arguments), nn.Linear(2, 2))
