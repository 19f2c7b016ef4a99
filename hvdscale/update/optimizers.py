"""The optimizer that a problem names, with weight decay kept off biases and normalization parameters; and the weights
for an evaluation: the averages of a run's weights, and those that an optimizer makes from its own.

Update rules: SGD, Adam and AdamW by torch's fused kernels, one call a parameter group; and those that torch.optim
lacks: momentum with the learning rate inside the velocity, LARS, LAMB, and Muon.

The updates and the checkpoints of the first are those of torch.optim's classes of these names. Those import torch's
compiler when they are first used, which takes a second, and spend more time outside the kernels than a small model's
update takes.

g is the mean gradient over the global batch, p a parameter (a layer's weights), lr the learning rate, which the
training step sets in ``group["lr"]`` before each update. Every parameter needs its gradient at every update. A
group with ``layerwise`` false has no trust ratio: by convention biases and normalization parameters have none (the LARS
of MLPerf Training names them in its skip list).

The whole state of an update is in ``state_dict()``, as tensors and plain numbers.
"""

import contextlib
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..plan.plan import Problem
from ..system.importing import import_object

# BatchNorm2d, LayerNorm, LlamaRMSNorm, GhostBatchNorm1d, LayerNormalization; not NormalizedLinear
NORM = re.compile(r"norm(alization)?(\d+d)?$", re.IGNORECASE)
COEFFICIENTS, ITERATIONS, SMALLEST = (3.4445, -4.7750, 2.0315), 5, 1e-7     # Jordan et al. 2024
# the factor of an update of a matrix, by its rows and columns
SCALES = {"match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
          "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns))}


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
                         f"closure that recomputes the loss: {error or type(error).__name__}. Choose another") from None
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


class PlainOptimizer(torch.optim.Optimizer):
    """A torch optimizer that does not import torch's compiler. A subclass defines ``step`` for parameters that all have
    gradients, and keeps its whole state in ``self.state`` and the groups, as tensors and plain numbers."""

    def __init_subclass__(cls) -> None:
        cls.step.hooked = True      # else torch wraps it in a profiler's context, which costs more than a small update

    def add_param_group(self, param_group: dict) -> None:
        self.param_groups.append({**self.defaults, **param_group, "params": list(param_group["params"])})

    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)           # as torch wraps it, it imports the compiler

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore a ``state_dict``, also of torch.optim's class; raises ValueError for other groups of parameters."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError("the saved state has other groups of parameters")
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.state.clear()
        for number, state in state_dict["state"].items():
            parameter = parameters[number]
            self.state[parameter] = {name: _place(value, name, parameter.detach()) for name, value in state.items()}
        for group, other in zip(self.param_groups, saved):
            group.update({**other, "params": group["params"]})

    def kept(self, parameters: Iterable[Tensor], name: str) -> list[Tensor]:
        """The parameters' state tensors of this name, zeros at first."""
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states):
            if name not in state:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [state[name] for state in states]


def _place(value: object, name: str, parameter: Tensor) -> object:
    """A saved value on the parameter's device; a tensor of the parameter's shape gets its type and strides too."""
    if not isinstance(value, Tensor):
        return value
    if name == "step" or value.shape != parameter.shape or not value.is_floating_point():
        return value.to(parameter.device)
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(value)


def fusible(parameters: Iterable[Tensor]) -> bool:
    """Whether the kernels take these parameters: each fills one block of memory."""
    return all(p.is_contiguous() or p.is_contiguous(memory_format=torch.channels_last) if p.ndim == 4
               else p.is_contiguous() for p in parameters)


class SGD(PlainOptimizer):
    """v <- m v + g + weight_decay p, p <- p - lr v; nesterov: p <- p - lr (g + weight_decay p + m v)."""

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float = 0.0, nesterov: bool = False):
        super().__init__(groups, dict(lr=lr, momentum=momentum, nesterov=nesterov, dampening=0.0, weight_decay=0.0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            velocities = self.kept(parameters, "momentum_buffer") if group["momentum"] else []
            torch._fused_sgd_(parameters, [p.grad for p in parameters], velocities, lr=group["lr"],
                              momentum=group["momentum"], weight_decay=group["weight_decay"], dampening=0.0,
                              nesterov=group["nesterov"], maximize=False, is_first_step=False)


class Adam(PlainOptimizer):
    """Adam (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1), with the weight decay in the gradient."""

    kernel = staticmethod(torch._fused_adam_)

    def __init__(self, groups: Iterable[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=0.0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            self.update(group)

    def update(self, group: dict) -> None:
        parameters, (beta1, beta2) = group["params"], group["betas"]
        means, squares = self.kept(parameters, "exp_avg"), self.kept(parameters, "exp_avg_sq")
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), device=parameter.device)
        updates = [self.state[parameter]["step"] for parameter in parameters]       # their numbers
        torch._foreach_add_(updates, 1.0)
        self.kernel(parameters, [p.grad for p in parameters], means, squares, [], updates, lr=group["lr"], beta1=beta1,
                    beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2)."""

    kernel = staticmethod(torch._fused_adamw_)


class RateInVelocity(PlainOptimizer):
    """Momentum with the learning rate inside the velocity (Goyal et al. 2017, arXiv:1706.02677, equations 9 and 10).

        d <- g + weight_decay p
        v <- m c v + lr d                       c = lr / (lr of the previous update) with correction, else 1
        p <- p - v                              nesterov: p <- p - (lr d + m v)

    With correction these are the updates of torch.optim.SGD, p <- p - lr u with u <- m u + d, under any learning rates;
    without, a velocity built up at one rate continues at that rate after the rate has changed. Corrected updates at a
    rate of 0 move nothing and keep the velocity at the scale of the previous rate, as equation 10 is undefined at 0.
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, nesterov: bool = False,
                 correction: bool = True, **further: object):
        super().__init__(groups, dict(lr=lr, momentum=momentum, nesterov=nesterov, correction=correction,
                                      weight_decay=0.0, velocity_lr=None, **further))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = group["params"]
            lr, momentum, before = group["lr"], group["momentum"], group["velocity_lr"]
            scale = (lr or before or 1.0) if group["correction"] else lr      # the rate that the velocity holds
            moved = lr / scale if group["correction"] else 1.0                # 1, but 0 at a corrected rate of 0
            directions, velocities = self._directions(group, parameters), self.kept(parameters, "velocity")
            torch._foreach_mul_(velocities, momentum * scale / before if group["correction"] and before else momentum)
            torch._foreach_add_(velocities, directions, alpha=scale)
            if group["nesterov"]:
                torch._foreach_add_(parameters, directions, alpha=-moved * scale)
                moved *= momentum
            torch._foreach_add_(parameters, velocities, alpha=-moved)
            group["velocity_lr"] = scale

    def _directions(self, group: dict, parameters: list[Tensor]) -> list[Tensor]:
        """d of every parameter, in new tensors."""
        return torch._foreach_add([p.grad for p in parameters], parameters, alpha=group["weight_decay"])


class Lars(RateInVelocity):
    """Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, arXiv:1708.03888, algorithm 1 and equation 6).

        r <- trust_coefficient |p| / (|g| + weight_decay |p|)       1 where |p| or |g| is 0, and in groups not layerwise
        v <- m v + lr r (g + weight_decay p)
        p <- p - v

    In the paper and in MLPerf's reference the learning rate is inside the velocity, without correction. ``correction``
    multiplies v by the ratio of the rates as in RateInVelocity, which equals lr outside. The trust ratio r is inside
    the velocity in either form.
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, trust_coefficient: float = 0.001,
                 correction: bool = False):
        super().__init__(groups, lr, momentum, correction=correction, trust_coefficient=trust_coefficient,
                         layerwise=True)

    def _directions(self, group: dict, parameters: list[Tensor]) -> list[Tensor]:
        directions = super()._directions(group, parameters)
        if group["layerwise"]:
            weight_norms, gradient_norms = _norms(parameters), _norms([p.grad for p in parameters])
            ratios = group["trust_coefficient"] * weight_norms / (gradient_norms + group["weight_decay"] * weight_norms)
            ratios = torch.where((weight_norms > 0) & (gradient_norms > 0), ratios, 1.0)
            torch._foreach_mul_(directions, list(ratios.unbind()))
        return directions


class Lamb(PlainOptimizer):
    """Layer-wise adaptive moments (You et al. 2020, arXiv:1904.00962, algorithm 2, with phi the identity).

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d <- (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p       at update t = 1, 2, ...
        p <- p - lr r d                         r = |p| / |d|; 1 where either is 0, and in groups not layerwise
    """

    def __init__(self, groups: Iterable[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999),
                 epsilon: float = 1e-6):
        super().__init__(groups, dict(lr=lr, betas=tuple(betas), epsilon=epsilon, weight_decay=0.0, layerwise=True,
                                      updates=0))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters, (beta1, beta2) = group["params"], group["betas"]
            group["updates"] += 1
            gradients = [p.grad for p in parameters]
            means, squares = self.kept(parameters, "mean"), self.kept(parameters, "square")
            torch._foreach_mul_(means, beta1)
            torch._foreach_add_(means, gradients, alpha=1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
            divisors = torch._foreach_div(squares, 1 - beta2 ** group["updates"])
            torch._foreach_sqrt_(divisors)
            torch._foreach_add_(divisors, group["epsilon"])
            directions = torch._foreach_div(means, 1 - beta1 ** group["updates"])
            torch._foreach_div_(directions, divisors)
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
            if group["layerwise"]:
                weight_norms, norms = _norms(parameters), _norms(directions)
                ratios = torch.where((weight_norms > 0) & (norms > 0), weight_norms / norms, 1.0)
                torch._foreach_mul_(directions, list(ratios.unbind()))
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors))


class Muon(AdamW):
    """Momentum orthogonalized by Newton and Schulz (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

        v <- m v + (1 - m) g
        u <- orthogonalized((1 - m) g + m v)                            Nesterov's form, as a matrix
        p <- (1 - lr weight_decay) p - lr scale u

    This is the rule of groups with ``orthogonalized``; the others have AdamW's, at the rate lr times their rate_share.
    A filter of shape (out, in, height, width) is a matrix of ``out`` rows, as there. torch.optim.Muon rounds to
    bfloat16, which turns last digits of a gradient, which the worker count changes, into thousandths of an update; so
    here it runs in the parameters' own type.

    scale  original: sqrt(max(1, rows / columns)), as there; match_rms_adamw: 0.2 sqrt(max(rows, columns)), which gives
           an update the root mean square of AdamW's, so that one rate serves both (Liu et al. 2025, arXiv:2502.16982,
           equation 4)
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, scale: str = "match_rms_adamw"):
        super().__init__(groups, lr, betas, eps)
        for group in self.param_groups:
            if group["orthogonalized"]:
                group.update(momentum=momentum, scale=scale)

    def update(self, group: dict) -> None:
        if not group["orthogonalized"]:
            super().update(group)
            return
        parameters, momentum = group["params"], group["momentum"]
        gradients, velocities = [p.grad for p in parameters], self.kept(parameters, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, velocities, momentum)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for parameter, direction in zip(parameters, directions):
            matrix = orthogonalized(direction.flatten(1))
            parameter.add_(matrix.view_as(parameter), alpha=-group["lr"] * SCALES[group["scale"]](*matrix.shape))


def orthogonalized(matrix: Tensor) -> Tensor:
    """A matrix of the same singular vectors, shape (rows, columns), whose singular values are about 1: 0.68 to 1.13.
    Five iterations X <- a X + (b X X' + c (X X')^2) X from the matrix over its Frobenius norm. Singular values under
    some thousandths of that norm stay smaller."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
