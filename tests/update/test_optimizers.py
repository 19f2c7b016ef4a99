"""Updates: rules against their papers' equations, weight decay, clipping, uneven workers, optimizers of any module."""
import io

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.errors import UsageError
from hvdscale.training.snapshot import restore_model
from hvdscale.update.model import make_model
from hvdscale.update.optimizers import clip_, follow_batch, make_optimizer, orthogonalized, parameter_groups
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from tests.parallel import toy
from tests.factories.plans import settled
from tests.factories.workers import on_each

RATES = [0.1, 0.1, 0.8, 0.8, 0.08, 0.08]             # a jump up by the batch ratio, a step down
FROM_ZERO = [0.0, 0.0, 0.05, 0.1, 0.0, 0.3, 0.03]    # a warmup from 0, and a rate of 0 in between


class Normed(nn.Module):
    """A convolution and a batch norm, a linear layer, and a scale of no dimension."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(()))


WEIGHTS = {"conv.weight", "linear.weight"}


def drawn_model(seed=0):
    """A model with all its parameters drawn, in fp64."""
    model, random = Normed().double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return model


def drawn_gradients(model, steps, seed=1):
    """A gradient for each parameter, by name, at each step."""
    random = np.random.default_rng(seed)
    return [{name: random.normal(size=p.shape) for name, p in model.named_parameters()} for _ in range(steps)]


def update(model, optimizer, gradients, rates):
    """An update for each step's gradients at its rate."""
    for by_name, lr in zip(gradients, rates):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.tensor(by_name[name], dtype=parameter.dtype)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()


def values(model):
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


# The references: one parameter p through the equations of the papers, gradients gs at rates lrs; w: weight decay

def sgd(p, gs, lrs, w, layerwise):
    for g, lr in zip(gs, lrs):
        p = p - lr * (g + w * p)
    return p


def rate_outside(p, gs, lrs, w, layerwise, nesterov=False, m=0.9):
    """v <- m v + d, p <- p - lr v."""
    v = 0.0
    for g, lr in zip(gs, lrs):
        d = g + w * p
        v = m * v + d
        p = p - lr * (d + m * v if nesterov else v)
    return p


def rate_inside(p, gs, lrs, w, layerwise, nesterov=False, corrected=True, m=0.9):
    """v <- m v + lr d, p <- p - v; corrected: m times the ratio of the rates (Goyal et al. 2017, equation 10)."""
    v, before = 0.0, lrs[0]
    for g, lr in zip(gs, lrs):
        d = g + w * p
        v = m * (lr / before if corrected else 1) * v + lr * d
        p, before = p - (lr * d + m * v if nesterov else v), lr
    return p


def nesterov(*given, **keys):
    return rate_outside(*given, nesterov=True, **keys)


def lars(p, gs, lrs, w, layerwise, trust=0.001, m=0.9, corrected=False):
    """You et al. 2017, algorithm 1; corrected: the rate outside the velocity."""
    v = 0.0
    for g, lr in zip(gs, lrs):
        local = trust * np.linalg.norm(p) / (np.linalg.norm(g) + w * np.linalg.norm(p)) if layerwise else 1.0
        v = m * v + (1.0 if corrected else lr) * local * (g + w * p)
        p = p - (lr if corrected else 1.0) * v
    return p


def lamb(p, gs, lrs, w, layerwise, beta1=0.9, beta2=0.999, epsilon=1e-6):
    """You et al. 2020, algorithm 2; not layerwise: AdamW (Loshchilov & Hutter 2019, algorithm 2)."""
    m, v = 0.0, 0.0
    for t, (g, lr) in enumerate(zip(gs, lrs), start=1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        d = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + w * p
        p = p - lr * d * (np.linalg.norm(p) / np.linalg.norm(d) if layerwise else 1.0)
    return p


def adamw(p, gs, lrs, w, layerwise, **keys):
    return lamb(p, gs, lrs, w, layerwise=False, **{"epsilon": 1e-8, **keys})


def adam(p, gs, lrs, w, layerwise, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Kingma & Ba 2015, algorithm 1, with the decay in the gradient."""
    m, v = 0.0, 0.0
    for t, (g, lr) in enumerate(zip(gs, lrs), start=1):
        g = g + w * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        p = p - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return p


def muon(p, gs, lrs, w, layerwise, m=0.9, scale="match_rms_adamw"):
    """Jordan et al. 2024, the update of torch.optim.Muon but for its bfloat16; not layerwise: AdamW."""
    if not layerwise:
        return adamw(p, gs, lrs, w, layerwise)
    v, rows = 0.0, p.shape[0]
    columns = p.size // rows
    factor = {"match_rms_adamw": 0.2 * max(rows, columns) ** 0.5, "original": max(1, rows / columns) ** 0.5}[scale]
    for g, lr in zip(gs, lrs):
        v = m * v + (1 - m) * g
        x = ((1 - m) * g + m * v).reshape(rows, columns)
        x = x / np.linalg.norm(x)
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
        p = (1 - lr * w) * p - lr * factor * x.reshape(p.shape)
    return p


INSIDE = {"lr_in_velocity": True}
UNCORRECTED = {"lr_in_velocity": True, "momentum_correction": False}
MOMENTS = {"beta1": 0.5, "beta2": 0.8, "epsilon": 0.1}


@pytest.mark.parametrize("optimizer, keys, reference, inner", [
    ("sgd", {}, sgd, {}),
    ("momentum", {}, rate_outside, {}), ("momentum", {"momentum": 0.5}, rate_outside, {"m": 0.5}),
    ("momentum", {"momentum": 0.0}, sgd, {}),
    ("nesterov", {}, nesterov, {}), ("nesterov", {"momentum": 0.5}, nesterov, {"m": 0.5}),
    ("momentum", INSIDE, rate_inside, {}), ("nesterov", INSIDE, rate_inside, {"nesterov": True}),
    ("momentum", {**INSIDE, "momentum": 0.0}, sgd, {}),
    ("momentum", UNCORRECTED, rate_inside, {"corrected": False}),
    ("nesterov", UNCORRECTED, rate_inside, {"corrected": False, "nesterov": True}),
    ("adam", {}, adam, {}), ("adam", MOMENTS, adam, MOMENTS),
    ("adamw", {}, adamw, {}), ("adamw", MOMENTS, adamw, MOMENTS),
    ("lars", {}, lars, {}), ("lars", {"momentum": 0.5, "trust_coefficient": 0.1}, lars, {"m": 0.5, "trust": 0.1}),
    ("lars", {"momentum_correction": True, "trust_coefficient": 0.1}, lars, {"corrected": True, "trust": 0.1}),
    ("lamb", {}, lamb, {}), ("lamb", MOMENTS, lamb, MOMENTS),
    ("muon", {}, muon, {}),
    ("muon", {"momentum": 0.5, "muon_scale": "original"}, muon, {"m": 0.5, "scale": "original"})])
@pytest.mark.parametrize("decay, all_decay", [(0.0, False), (0.1, False), (0.1, True)])
def test_updates_are_those_of_the_papers_equations(optimizer, keys, reference, inner, decay, all_decay):
    """Through a rise and a fall of the rate; biases and norms decay only where asked, and never have a trust ratio."""
    keys = keys | ({"weight_decay": decay, "decay_norm_and_bias": all_decay} if decay else {})
    model = drawn_model()
    before, gradients = values(model), drawn_gradients(model, len(RATES))
    update(model, make_optimizer(settled(optimizer=optimizer, **keys), model), gradients, RATES)
    for name, got in values(model).items():
        expected = reference(before[name], [step[name] for step in gradients], RATES,
                             decay if all_decay or name in WEIGHTS else 0.0, name in WEIGHTS, **inner)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov"])
@pytest.mark.parametrize("rates", [RATES, FROM_ZERO, [0.1] * 6, [0.2, 0.1, 0.0, 0.0]])
def test_corrected_momentum_equals_the_rate_outside_the_velocity(optimizer, rates):
    outside, inside = drawn_model(), drawn_model()
    gradients = drawn_gradients(outside, len(rates))
    update(outside, make_optimizer(settled(optimizer=optimizer, weight_decay=0.1), outside), gradients, rates)
    update(inside, make_optimizer(settled(optimizer=optimizer, weight_decay=0.1, **INSIDE), inside), gradients, rates)
    for name, expected in values(outside).items():
        np.testing.assert_allclose(values(inside)[name], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
@pytest.mark.parametrize("weight, gradient", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_layer_whose_weights_or_gradient_are_all_zero_has_no_trust_ratio(optimizer, weight, gradient):
    model = nn.Linear(3, 3, bias=False).double()
    nn.init.constant_(model.weight, weight)
    model.weight.grad = torch.full_like(model.weight, gradient)
    make_optimizer(settled(optimizer=optimizer, lr=0.5), model).step()
    torch.testing.assert_close(model.weight.detach(), torch.full_like(model.weight, weight - 0.5 * gradient),
                               rtol=1e-5, atol=0)


@pytest.mark.parametrize("optimizer, keys", [
    ("sgd", {}), ("momentum", {}), ("nesterov", {}), ("momentum", INSIDE), ("nesterov", UNCORRECTED), ("adam", {}),
    ("adamw", {}), ("lars", {}), ("lars", {"momentum_correction": True}), ("lamb", {}), ("muon", {}),
    ("torch.optim:RMSprop", {})])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_updates_go_on_from_a_saved_state_as_if_never_interrupted(optimizer, keys, precision):
    plan = settled(optimizer=optimizer, weight_decay=0.1, **keys)
    model, again = drawn_model().to(precision), drawn_model(seed=5).to(precision)
    gradients = drawn_gradients(model, len(FROM_ZERO))
    first = make_optimizer(plan, model)
    update(model, first, gradients[:3], FROM_ZERO[:3])
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": first.state_dict()}, saved)
    update(model, first, gradients[3:], FROM_ZERO[3:])

    saved.seek(0)
    loaded, second = torch.load(saved, weights_only=True), make_optimizer(plan, again)
    again.load_state_dict(loaded["model"])
    second.load_state_dict(loaded["optimizer"])
    update(again, second, gradients[3:], FROM_ZERO[3:])
    for name, expected in values(model).items():
        np.testing.assert_array_equal(values(again)[name], expected)


def test_the_rates_of_muons_groups_are_kept_from_checkpoints_of_earlier_versions():
    model = nn.Linear(4, 2)
    plan = settled(optimizer="muon", lr=0.1, adamw_lr=0.05)
    optimizer = make_optimizer(plan, model)
    shares = [group["rate_share"] for group in optimizer.param_groups]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for group in state["optimizer"]["param_groups"]:
        group["lr_factor"] = group.pop("rate_share")
    restore_model(state, model, optimizer)
    assert [group["rate_share"] for group in optimizer.param_groups] == shares and min(shares) < max(shares)


def test_muon_makes_singular_values_about_equal():
    u, _, v = torch.linalg.svd(torch.randn(20, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
                               full_matrices=False)
    for scale in (1e-6, 1.0, 1e9):
        matrix = scale * u @ torch.diag(torch.linspace(0.1, 1, 20, dtype=torch.float64)) @ v
        found = orthogonalized(matrix)
        assert 0.65 < torch.linalg.svdvals(found).min() and torch.linalg.svdvals(found).max() < 1.15
        assert torch.equal(orthogonalized(matrix.T), found.T)


def test_muon_leaves_embeddings_norms_and_biases_to_adamw_at_its_rate():
    model = Attentive()
    names = {id(p): name for name, p in model.named_parameters()}
    plan = settled(4, optimizer="muon", lr=0.01, adamw_lr=0.002)
    groups = parameter_groups(plan, model)
    assert [[names[id(p)] for p in group["params"]] for group in groups][:2] == [
        ["unbiased", "attention.in_proj_weight", "attention.out_proj.weight", "normalized.weight"],
        ["embedding.weight"]]
    assert [(group["orthogonalized"], group["rate_share"]) for group in groups] == [
        (True, 1.0), (False, pytest.approx(0.2)), (False, pytest.approx(0.2))]
    assert plan.adamw_lr / plan.peak_lr == pytest.approx(0.2) and plan.lr_factor == 4


@pytest.mark.parametrize("keys, ratio", [({}, 1), ({"adamw_lr": 0.3}, 3)])
def test_the_rates_of_muon_and_of_its_adamw_follow_one_schedule(keys, ratio):
    """A step after which AdamW's first update of a bias, which is as long as its rate, shows the rate."""
    plan = toy.settled(1, optimizer="muon", lr=0.1, momentum=0.9, **keys, precision="fp64")
    model = make_model(toy.WORKLOAD, plan, torch.device("cpu"))
    biases = [p for p in model.parameters() if p.ndim == 1]
    before = [p.detach().clone() for p in biases]
    step = DataParallelStep(plan, toy.WORKLOAD, toy.load().train, model, make_optimizer(plan, model),
                            SingleWorker(), torch.device("cpu"))
    step(0, 0.04, set())
    moved = max((p.detach() - b).abs().max().item() for p, b in zip(biases, before))
    assert moved == pytest.approx(0.04 * ratio, rel=1e-4)


# weight decay

class MadeRMSNorm(nn.Module):
    """A normalisation of the user's own, told by its name, with a scale of two dimensions."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2, 1))


class Whitening(nn.LayerNorm):
    """A normalisation that does not have the name of one, but comes from one."""


class NormalizedLinear(nn.Linear):
    """No normalisation."""


class Attentive(nn.Module):
    """Norms and biases of several dimensions, an embedding tied to the output layer, and weights with odd names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.planes, self.own, self.derived = nn.LayerNorm([2, 3, 4]), MadeRMSNorm(), Whitening([2, 2])
        self.normalized, self.output = NormalizedLinear(4, 4, bias=False), nn.Linear(4, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.position_bias_table, self.unbiased = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))


def test_norms_and_biases_do_not_decay_and_a_tied_weight_counts_once():
    model = Attentive()
    names = {id(p): name for name, p in model.named_parameters()}
    weights, others = ([names[id(p)] for p in group["params"]] for group in parameter_groups(settled(), model))
    assert weights == ["unbiased", "embedding.weight", "attention.in_proj_weight", "attention.out_proj.weight",
                       "normalized.weight"]
    assert others == [name for name in names.values() if name not in weights]
    assert {"planes.weight", "own.gain", "derived.weight", "attention.bias_k", "position_bias_table"} <= set(others)


def test_a_frozen_parameter_is_left_to_itself():
    model = Normed()
    model.conv.weight.requires_grad_(False)
    parameters = [p for group in parameter_groups(settled(), model) for p in group["params"]]
    assert all(p is not model.conv.weight for p in parameters) and len(parameters) == 6


# global batch, ghost batch: shares even and uneven, of whole groups and of single examples
@pytest.mark.parametrize("optimizer, keys", [
    ("momentum", UNCORRECTED), ("nesterov", INSIDE), ("adam", {}), ("adamw", {}), ("lars", {}), ("lamb", {}),
    ("muon", {})])
def test_more_workers_make_the_same_updates_with_every_optimizer(optimizer, keys):
    """In three steps at rates that jump."""
    keys = {"momentum": 0.9, **keys} if optimizer in ("momentum", "nesterov", "lars", "muon") else keys
    keys = dict(precision="fp64", weight_decay=0.1, model_args={"dropout": 0.5}, global_batch=22, ghost_batch=4,
                optimizer=optimizer, **keys)
    (loss, reference), = updates(1, **keys)
    for got_loss, got in updates(3, **keys):
        assert got_loss == pytest.approx(loss, rel=1e-12)
        assert (got - reference).norm() <= 1e-12 * reference.norm()


def updates(members, **keys):
    """Each member's losses and parameters after three steps of the toy."""
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


# clipping

@pytest.mark.parametrize("scale, largest, factor", [(1, 2.5, 0.5), (1, 5.0, 1.0), (1e30, 5.0, 1e-30), (0, 1.0, 1.0)])
def test_a_longer_gradient_is_clipped_and_a_shorter_one_kept(scale, largest, factor):
    """At 1e30 the squares overflow fp32."""
    before = torch.tensor([3.0, 0.0, -4.0]) * scale
    gradients = before.clone()
    norm = clip_(gradients, largest)
    assert norm.item() == pytest.approx(5 * scale, rel=1e-6, abs=1e-29)
    torch.testing.assert_close(gradients, before * factor, rtol=1e-6 if factor < 1 else 0, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_is_not_hidden_by_clipping(bad):
    gradients = torch.tensor([1.0, bad])
    clip_(gradients, 1.0)
    assert gradients.isnan().any()


# optimizers of any module

def test_a_class_of_torch_is_taken_with_its_arguments_which_may_follow_the_batch():
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
    follow_batch(ours, {"beta1": 0.6, "weight_decay": 0.2})                 # where there is any
    assert [(one["betas"], one["weight_decay"]) for one in ours.param_groups] == [((0.6, 0.75), 0.2), ((0.6, 0.75), 0)]


@pytest.mark.parametrize("optimizer, arguments, said", [
    ("adagrad", {}, "optimizer 'adagrad' is none of sgd, momentum, nesterov, .* lamb, muon, and not module:"),
    ("adma", {}, "optimizer 'adma' is none of sgd.*; did you mean adam or adamw\\?"),
    ("torch.optim:Adamant", {}, "optimizer 'torch.optim:Adamant' cannot be imported: .*Adamant"),
    ("not_a_package:Adam", {}, "optimizer 'not_a_package:Adam' cannot be imported: No module named 'not_a_package'"),
    (":Adam", {}, "optimizer ':Adam' cannot be imported"),
    ("torch:optim", {}, "optimizer 'torch:optim' does not take lr"),
    ("torch.optim.swa_utils:get_ema_avg_fn", {}, "get_ema_avg_fn' does not take lr"),
    ("tests.update.test_optimizers:maker_of_a_dict", {}, "maker_of_a_dict' is a dict, not a torch optimizer"),
    ("torch.optim:LBFGS", {}, "LBFGS' does not step from a dense gradient alone, without a closure .*closure"),
    ("torch.optim:SparseAdam", {}, "'torch.optim:SparseAdam' does not step .* does not support dense gradients"),
    ("tests.update.test_optimizers:TwoPasses", {}, "TwoPasses' does not step .*: needs a closure. Choose another"),
    ("torch.optim:Adam", {"beta": 0.9}, r"does not take lr and optimizer_args = {'beta': 0.9}: .*beta"),
    ("torch.optim:Adam", {"lr": 0.9}, "multiple values"), ("torch.optim:Adam", {"betas": [0.9, 1.5]}, "1.5")])
def test_an_optimizer_that_cannot_be_or_needs_more_than_the_mean_gradient_is_named(optimizer, arguments, said):
    keys = {"optimizer_args": arguments} if arguments else {}
    with pytest.raises(UsageError, match=said):
        make_optimizer(settled(optimizer=optimizer, **keys), nn.Linear(2, 2, bias=False))


def maker_of_a_dict(groups, lr):
    return {"groups": groups, "lr": lr}


class TwoPasses(torch.optim.SGD):
    """Says only when it steps that it computes the loss twice."""
    def step(self, closure=None):
        if closure is None:
            raise RuntimeError("needs a closure")
