"""The optimizer that a problem names, with weight decay kept off biases and normalization parameters; and the weights
for an evaluation: the averages of a run's weights, and those that an optimizer makes from its own.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..plan.plan import Problem
from ..system.importing import import_object
from .rules import SGD, Adam, AdamW, Lamb, Lars, Muon, RateInVelocity, fusible

# BatchNorm2d, LayerNorm, LlamaRMSNorm, GhostBatchNorm1d, LayerNormalization; not NormalizedLinear
NORM = re.compile(r"norm(alization)?(\d+d)?$", re.IGNORECASE)


def make_optimizer(problem: Problem, model: nn.Module) -> torch.optim.Optimizer:
    """The problem's optimizer over the model's trainable parameters; raises UsageError for an unusable class.

    Weight decay is added to the gradient, and so enters velocity and moments. adamw, muon and lamb decouple it: it
    subtracts lr times the decay from a weight (Loshchilov & Hutter 2019, arXiv:1711.05101). Nothing here depends on
    the number of workers, as the gradient is already a mean.

    momentum and nesterov are torch's form v <- m v + g, p <- p - lr v: the learning rate is outside the velocity,
    so changing it needs no momentum correction (Goyal et al. 2017, remark 2). lr_in_velocity is the other form.
    """
    groups = parameter_groups(problem, model)
    if ":" in problem.optimizer:
        return _of_class(problem, groups)
    fused = all(fusible(group["params"]) for group in groups)
    if problem.optimizer in ("sgd", "momentum", "nesterov") and not problem.lr_in_velocity:
        sgd = SGD if fused else torch.optim.SGD
        return sgd(groups, problem.peak_lr, problem.momentum or 0.0, nesterov=problem.optimizer == "nesterov")
    if problem.optimizer in ("momentum", "nesterov"):
        return RateInVelocity(groups, problem.peak_lr, problem.momentum, problem.optimizer == "nesterov",
                              problem.momentum_correction)
    if problem.optimizer == "lars":
        return Lars(groups, problem.peak_lr, problem.momentum, problem.trust_coefficient, problem.momentum_correction)
    betas = problem.beta1, problem.beta2
    if problem.optimizer == "lamb":
        return Lamb(groups, problem.peak_lr, betas, problem.epsilon)
    if problem.optimizer == "muon":
        return Muon(groups, problem.peak_lr, problem.momentum, betas, problem.epsilon, problem.muon_scale)
    adam, adamw = (Adam, AdamW) if fused else (torch.optim.Adam, torch.optim.AdamW)
    return (adamw if problem.optimizer == "adamw" else adam)(groups, problem.peak_lr, betas=betas, eps=problem.epsilon)


def _of_class(problem: Problem, groups: list[dict]) -> torch.optim.Optimizer:
    if "weight_decay" in problem.optimizer_args:
        raise UsageError("optimizer_args has weight_decay, which is a separate key: --set weight_decay=...")
    factory = import_object(problem.optimizer, "optimizer")
    apart = nn.Parameter(groups[0]["params"][0].detach().new_ones(2, 2))
    apart.grad = torch.ones_like(apart)
    try:
        optimizer = factory(groups, lr=problem.peak_lr, **problem.optimizer_args)
        trial = factory([apart], lr=problem.peak_lr, **problem.optimizer_args)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"optimizer {problem.optimizer!r} does not take lr and optimizer_args = "
                         f"{problem.optimizer_args}: {error}") from None
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"optimizer {problem.optimizer!r} is a {type(optimizer).__name__}, not a torch optimizer")
    try:
        for one in (optimizer, trial):
            if has_modes(one):
                one.train()
        trial.step()
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UsageError(f"optimizer {problem.optimizer!r} does not step from a dense gradient alone, without a "
                         f"closure that recomputes the loss: {error or type(error).__name__}. Choose another"
                         ) from None
    return optimizer


def parameter_groups(problem: Problem, model: nn.Module) -> list[dict]:
    """Trainable parameters in the model's order, in at most two groups: weights, then biases and normalization. Only
    the weights have trust ratios and, unless the problem sets decay_norm_and_bias, weight decay. A shared parameter
    appears once. Of muon's, a third group between them has the weights of embeddings, which AdamW updates."""
    apart = norms_and_biases(model)
    embeddings = {id(module.weight) for module in model.modules() if problem.optimizer == "muon" and isinstance(
        module, (nn.Embedding, nn.EmbeddingBag))}       # of which a row is a vector, not a part of a linear map
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "embeddings": [], "norms and biases": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = "embeddings" if id(parameter) in embeddings else "weights"
            groups["norms and biases" if id(parameter) in apart else kind].append(parameter)
    found = []
    for kind, members in groups.items():
        weights, decays = kind == "weights", kind != "norms and biases" or problem.decay_norm_and_bias
        group = {"params": members, "weight_decay": problem.weight_decay if decays else 0.0}
        if problem.optimizer in ("lars", "lamb"):
            group["layerwise"] = weights
        elif problem.optimizer == "muon":
            group |= {"orthogonalized": weights, "rate_share": 1.0 if weights else problem.adamw_lr / problem.peak_lr}
        found += [group] if members else []
    return found


def follow_batch(optimizer: torch.optim.Optimizer, values: Mapping[str, float]) -> None:
    """Set the fields of the plan that follow the batch in all parameter groups; weight decay where there is any.
    Moments keep their sums. Adam's and LAMB's corrections of the bias, 1 - beta^updates, use the beta in force: they
    are near 1 by the time that a batch usually changes."""
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = tuple(values.get(name, beta) for name, beta in zip(("beta1", "beta2"), group["betas"]))
        for name in {"momentum", "epsilon", "eps", "weight_decay"} & group.keys():
            value = values.get("epsilon" if name == "eps" else name)
            if value is not None and (name != "weight_decay" or group[name]):
                group[name] = value


def norms_and_biases(model: nn.Module) -> set[int]:
    """Ids of the parameters that are not weights: of one dimension, named bias, or in a class named as a norm."""
    found = set()
    for module in model.modules():
        norm = any(NORM.search(kind.__name__) for kind in type(module).__mro__)
        found |= {id(parameter) for name, parameter in module.named_parameters(recurse=False)
                  if norm or parameter.ndim <= 1 or "bias" in name.split("_")}
    return found


def clip_(gradients: Tensor, largest: float) -> Tensor:
    """Scale the mean gradient g to the norm ``largest`` where |g| is larger (Pascanu, Mikolov & Bengio 2013,
    arXiv:1211.5063, algorithm 1); returns the norm before, shape ()."""
    norm = torch.linalg.vector_norm(gradients)
    if not norm.isfinite():         # the squares may have overflowed, or the gradient is not finite and becomes NaN
        norm = torch.linalg.vector_norm(gradients, dtype=torch.float64)
    gradients.mul_((largest / norm).clamp(max=1.0))
    return norm


class WeightAverage:
    """An average of a model's weights over the updates, on the device and in the type of each.

        ema     a <- d a + (1 - d) p after each update, a being p at first; d = 2^(-examples of a step / half-life)
        tail    the mean of p after each update from step average_start + 1 (Polyak & Juditsky 1992, of a tail)

    Running statistics of normalization are averaged in the same way. Before a tail has begun, it is the weights.
    """

    def __init__(self, problem: Problem, model: nn.Module):
        self.kind, self.half_life, self.start = problem.average, problem.average_half_life, problem.average_start
        self._weights = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())
                         if tensor.is_floating_point()]
        self._averages = [tensor.clone() for tensor in self._weights]
        self._count = 0             # updates in a tail's mean

    @torch.no_grad()
    def update(self, step: int, examples: int) -> None:
        """Take in the weights after the update that followed ``step`` steps, of ``examples`` examples."""
        if self.kind == "ema":
            share = 1 - 2.0 ** (-examples / self.half_life)
        elif step < self.start:
            return
        else:
            self._count += 1
            share = 1 / self._count
        torch._foreach_lerp_(self._averages, self._weights, share)

    @contextlib.contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """A context in which the model has the averages; afterwards it has its weights, to the bit."""
        with put_back(self._weights):
            if self.kind == "ema" or self._count:
                torch._foreach_copy_(self._weights, self._averages)
            yield

    def state(self) -> dict:
        return {"count": self._count, "averages": self._averages}

    def restore(self, state: dict) -> None:
        self._count = state["count"]
        torch._foreach_copy_(self._averages, [tensor.to(mine.device) for tensor, mine in
                                              zip(state["averages"], self._averages)])


@contextlib.contextmanager
@torch.no_grad()
def evaluation_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A context in which the model has the weights that its optimizer evaluates; most evaluate the model as it is.
    Those of schedule-free learning (Defazio et al. 2024, arXiv:2405.15682) have ``eval()`` and ``train()``, which move
    the weights in place. Rounding would leave a trace of that, so the weights are put back to the bit afterwards."""
    if not has_modes(optimizer):
        yield
        return
    with put_back([parameter.detach() for parameter in model.parameters()]):
        optimizer.eval()
        try:
            yield
        finally:
            optimizer.train()


@contextlib.contextmanager
def put_back(weights: list[Tensor]) -> Iterator[None]:
    """A context that may change these weights in place; afterwards they are what they were, to the bit."""
    kept = [weight.clone() for weight in weights]
    try:
        yield
    finally:
        torch._foreach_copy_(weights, kept)


def has_modes(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer asks for ``train()`` before its steps and ``eval()`` before an evaluation."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
