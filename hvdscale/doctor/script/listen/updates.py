"""Losses, backward passes, clipping and steps: local gradients, the one that is applied, rates and parameters."""

import weakref
from dataclasses import replace

import numpy as np
import torch

from ....watch.generators import moved_since, snapshot
from ....watch.listener import Listener
from ....watch.remarks import IN_BACKWARD, OWN_HOOK
from ..record import NOTHING, BackwardPass, Clip, GeneratorUse, LossCall, OptimizerUpdates, Update
from .batches import Batches
from .session import Session
from .tensors import digest, digest_untrained, local, names_of, sample, sampled, square_of, trained_modules, untaken

OF_CLASSES = ("cross_entropy", "nll_loss")
WITH_MODES = torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase
ENDS = {"CosineAnnealingLR": "T_max", "OneCycleLR": "total_steps", "PolynomialLR": "total_iters"}
SETTINGS = ("momentum", "weight_decay", "betas", "eps", "dampening", "nesterov")     # of an optimizer's groups
MOST_TARGETS = 4096     # of a call that are kept one by one
Samples = dict[int, np.ndarray]         # by id of the parameter


class Optimizer:
    """What came before the next update of one optimizer."""
    steps: OptimizerUpdates | None = None       # once it has made one
    update: Update | None = None                # that is being made
    evaluated = False
    scale = 1.0                                 # of its gradients
    reached = False                             # whether any pass has reached its parameters

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = weakref.ref(optimizer)
        self.clear()

    def parameters(self) -> list[torch.Tensor]:
        groups = getattr(self.optimizer(), "param_groups", ())
        return [one for group in groups for one in group["params"] if one.requires_grad]

    def clear(self) -> None:
        self.passes: list[tuple[BackwardPass, Samples]] = []
        self.clips: list[Clip] = []
        self.unclipped: Samples = {}            # gradients before they were clipped, since the last pass


class Updates(Listener):
    """The optimizers' part of the record."""

    def __init__(self, session: Session, batches: Batches):
        self.session, self.batches = session, batches
        self.scale = 1.0                                            # of a GradScaler
        self._losses = 0                                            # that were called
        self._reached: dict[int, LossCall] = {}                     # those that the running pass has reached, by number
        self._local, self._fresh = {}, {}                           # its gradients, and whether each begins a sum
        self._rough = False                                         # whether fewer than 32 bits were used
        self.optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, Optimizer] = weakref.WeakKeyDictionary()
        self._schedules: weakref.WeakSet = weakref.WeakSet()
        self.schedule_made = self._schedules.add                    # an event
        # the generators at the first forward, and at the last batch or pass
        self._before, self._idle, self._prepared, self._called = None, None, NOTHING, None

    def _of(self, optimizer: torch.optim.Optimizer) -> Optimizer:
        return self.optimizers.setdefault(optimizer, Optimizer(optimizer))

    def parameters_added(self, optimizer):
        self._of(optimizer)
        self._rough |= any(one.element_size() < 4 for one in optimizer.param_groups[-1]["params"])

    def loss(self, name, value, given, line):
        self._losses += 1
        number, reduction, result = self._losses, given["reduction"], value.detach()
        count = value.numel() if reduction == "none" else _count(name, given)

        def reach(gradient: torch.Tensor) -> None:
            gradient = gradient.detach().double()
            targets, total, weight = _weigh(gradient, reduction, count)
            values = np.array([result.double().sum().item() * (count if reduction == "mean" else 1)])
            call = self._reached[number] = LossCall(name, targets, total, line, values, np.array([weight]))
            if reduction == "none" and result.numel() <= MOST_TARGETS:
                call.values, call.weights = (one.double().reshape(-1).cpu().numpy() for one in (result, gradient))
        value.register_hook(reach)

    def loss_scaled(self, scale):
        self.scale = scale

    def unscaled(self, optimizer):
        self._of(optimizer).scale = 1.0

    def precision_lowered(self):
        self._rough = True

    def batch(self, iterator, index, data):
        if self._before is None:
            self._idle = snapshot()

    def forward_begins(self, module):
        self._called = weakref.ref(module)
        self._prepared = GeneratorUse(self._idle[0], moved_since(self._idle)) if self._idle else NOTHING
        self._before = snapshot()

    def pass_begins(self, roots):
        self._drawn = GeneratorUse(self._before[0], moved_since(self._before)) if self._before else NOTHING
        self._again = self._before is None
        self._local, self._fresh, self._reached = {}, {}, {}
        self.batches.used()

    def gradient(self, parameter, gradient, first=None):
        grad = parameter.grad
        self._fresh[id(parameter)] = first is not False and (grad is None or not local(grad).any().item())
        self._local[id(parameter)] = sample(gradient)

    def pass_ends(self, roots, line):
        prepared, self._prepared, self._before, self._idle = self._prepared, NOTHING, None, snapshot()
        loss = sum(local(root.detach()).double().sum().item() for root in roots) / self.scale
        calls = [replace(call, total=call.total / self.scale) for _, call in sorted(self._reached.items())]
        gradients = {at: values / self.scale for at, values in self._local.items()}
        called = self._called and self._called()
        modes = [one.training for one in called.modules() if isinstance(one, WITH_MODES)] if called is not None else []
        for of in self.optimizers.values():
            own = {id(each) for each in of.parameters()} & {*gradients}
            # which parameters a pass reached is not known where they are sharded, nor of an optimizer of other tensors
            if not own and not self.session.record.sharded and of.reached:
                continue
            if own and (not of.reached or all(self._fresh[each] for each in own)):
                of.reached = True
                of.clear()
            of.unclipped, of.scale = {}, self.scale
            one = BackwardPass(loss, np.empty(0), calls, self.batches.fetched(), self._drawn, self._rough, line,
                               prepared, self._again, self.scale, (len(modes), modes.count(False)))
            of.passes.append((one, {at: gradients[at] for at in own}))
        self.scale = 1.0

    def clipping(self, parameters):
        before = {id(one): sample(one.grad) for one in parameters if one.grad is not None}
        self._square = square_of(parameters)
        for optimizer in self.optimizers.values():
            own = {id(each) for each in optimizer.parameters()}
            optimizer.unclipped = {at: values for at, values in before.items() if at in own} | optimizer.unclipped

    def clipped(self, parameters, norm, limit, line):
        ids = {id(parameter) for parameter in parameters}
        for of in self.optimizers.values():
            if any(id(parameter) in ids for parameter in of.parameters()):
                of.clips.append(Clip(norm, limit, len(of.passes), line, scale=of.scale, square=self._square))

    def reducing(self, optimizer):
        for clip in self._of(optimizer).clips:
            clip.early = True

    def step_begins(self, optimizer, line):
        of = self._of(optimizer)
        of.update, of.evaluated, self._line = None, False, line
        if torch._C._current_graph_task_id() >= 0:
            self.session.remark(IN_BACKWARD)

    def writes(self, optimizer, evaluated):
        of = self._of(optimizer)
        if of.evaluated:
            return
        of.evaluated = evaluated
        parameters, schedules = of.parameters(), [one for one in self._schedules if one.optimizer is optimizer]
        record = self.session.record
        if of.steps is None:
            if not record.optimizers:
                record.untaken = untaken(each for one in self.optimizers.values() for each in one.parameters())
            for one in schedules if len(schedules) == 1 else ():
                kind = type(one).__name__
                record.schedule = kind, int(getattr(one, ENDS.get(kind, ""), 0))
            if any(len(one._backward_hooks or ()) > 1 for one in parameters):       # one of them is the watcher's
                record.remarks.append(OWN_HOOK)
            flat = not of.reached and bool(of.passes) and not record.sharded
            named = trained_modules().items() if flat else zip(names_of(parameters), parameters)
            of.steps = OptimizerUpdates(type(optimizer).__name__, [(name, sampled(one)) for name, one in named],
                                        settings=settings_of(optimizer), flat=flat)
        known = not of.steps.flat or type(optimizer).__module__.startswith("torch.optim")   # its step does not scale
        square = square_of(parameters) if known else 0.0
        if of.steps.flat:
            parameters = [*trained_modules().values()]
        places = {id(parameter): sampled(parameter) for parameter in parameters}

        def joined(samples: Samples) -> np.ndarray:
            return np.concatenate([samples.get(at, np.zeros(size)) for at, size in places.items()] or [np.empty(0)])
        gradients = {id(one): sample(one.grad) for one in parameters if one.grad is not None}
        for one, each in of.passes:
            one.gradient = joined(each)
        of.update = Update(
            joined(gradients), joined({**gradients, **of.unclipped}),
            joined({id(parameter): sample(parameter) for parameter in parameters}), digest(parameters),
            tuple(float(group["lr"]) for group in optimizer.param_groups),
            tuple(sorted(int(schedule.last_epoch) for schedule in schedules)),
            [one for one, _ in of.passes], list(of.clips), self._line, square=square)

    def step_ends(self, optimizer):
        of = self._of(optimizer)
        update, of.update = of.update, None
        of.clear()
        record = self.session.record
        if update is None or of.steps is None or not update.passes and not np.nan_to_num(update.gradient).any():
            return                          # a step that only makes the optimizer's state, as broadcasts of it do
        parameters = [*trained_modules().values()] if of.steps.flat else of.parameters()
        update.digest_after = digest(parameters)
        update.after = np.concatenate([sample(parameter) for parameter in parameters] or [np.empty(0)])
        if record.made + 1 == self.session.wanted:
            record.untrained_later = digest_untrained()
        if of.steps not in record.optimizers:
            record.optimizers.append(of.steps)
        of.steps.updates.append(update)
        self.session.stepped()


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    return {f"{key}.of group {at}": str(group[key]) for at, group in enumerate(optimizer.param_groups)
            for key in SETTINGS if key in group}


def _count(name: str, given: dict) -> float:
    target = given["target"]
    if name not in OF_CLASSES or target.is_floating_point():
        return float(len(target) if target.dim() else 1)
    counted, weight = target[target != given["ignore_index"]], given.get("weight")
    return float(counted.numel() if weight is None else weight[counted].sum().item())


def _weigh(gradient: torch.Tensor, reduction: str, count: float) -> tuple[float, float, float]:
    """How many targets the loss is taken over, the sum of their weights, and the largest of them."""
    if reduction == "none":
        weights = gradient[gradient != 0].double()
        return float(weights.numel()), weights.sum().item(), weights.max().item() if weights.numel() else 0.0
    weight = gradient.double().sum().item()
    return (count, weight * count, weight) if reduction == "sum" else (count, weight, weight / max(count, 1.0))
