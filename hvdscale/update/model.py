"""The model before its first step: built from the seed, the same on all workers, examined for group-by-group passes."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import get_ident

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..data.splits import OwnGenerators, seed_generators
from ..errors import PlanError, RanksDifferError, WorkloadError, is_of_user_code
from ..formatting.numbers import counted
from ..modules.ghost_groups import GhostGroups
from ..modules.layers import BatchNorm, is_batch_norm, is_replaced
from ..modules.running_statistics import Buffers
from ..plan.plan import Plan
from ..plan.shards import Pass, group_bounds, stream_key
from ..workers.group import SingleWorker, Workers
from ..workload import MapSplit, Split, Workload, bound_loss, build_model, describe_build, kind_of, to_device
from .gradients import check_exact
from .precision import PARAMETERS, autocast

PADDED = "examples that a collate function may pad to the longest of a pass"
RANDOM = "random numbers of its own"
LONGEST = 80            # characters of a layer in an error; of a longer one its class is named
# for which each ghost group has its own pass, so that sums inside a pass are the same anywhere
OF_SETTINGS = "exact = true", "precision = fp16"


def make_model(workload: Workload, plan: Plan, device: torch.device) -> nn.Module:
    """The model drawn from the seed in fp32 on the CPU, so the same in every precision; raises UsageError."""
    with OwnGenerators():
        seed_generators(stream_key(plan.seed, "model"), gpus=device.type != "cpu")
        model = build_model(workload, plan.model_args)
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if values.is_meta:
            raise WorkloadError("; ".join(filter(None, (
                f"{workload.name}: build returned a model whose {name} is on the meta device, without values",
                "build it on the CPU, outside of torch.device('meta') and init_empty_weights",
                describe_build(workload)))))
    return model.to(device=device, dtype=PARAMETERS[plan.precision])


def share_model(model: nn.Module, workers: Workers) -> None:
    """Give all ranks rank 0's parameters, as different processors may draw different last bits. Raises RanksDifferError
    on all ranks if names or shapes differ, or values by more than that."""
    if workers.size == 1:
        return
    shapes = [(name, tuple(values.shape)) for name, values in model.named_parameters()]
    by_rank = workers.gather(shapes, "model/shapes")
    for rank, others in enumerate(by_rank):
        for mine, other in zip([*by_rank[0], None], [*others, None]):
            if mine != other:
                raise RanksDifferError(f"rank {rank} built another model than rank 0: {_describe(other)} where rank 0 "
                                       f"has {_describe(mine)}; build must return the same model on all workers")
    with torch.no_grad():
        own = nn.utils.parameters_to_vector(model.parameters())
        shared = workers.broadcast_(own.clone(), "model")
        sizes = [p.numel() for p in model.parameters()]
        far = [name for (name, _), a, b in zip(shapes, own.split(sizes), shared.split(sizes))
               if len(a) and (a - b).abs().max() > 1e-4 * b.abs().max()]
        for parameter, values in zip(model.parameters(), shared.split(sizes)):
            parameter.copy_(values.view_as(parameter))      # in place: an LSTM's share one block, for cuDNN
    for rank, names in enumerate(workers.gather(far, "model/values")):
        if names:
            raise RanksDifferError(f"rank {rank} built a model whose {names[0]} differs from rank 0's; draw it from "
                                   "torch's, numpy's or Python's generator, which the run seeds, and not from the "
                                   "rank or the time")


def _describe(parameter: tuple[str, tuple] | None) -> str:
    return "no further parameter" if parameter is None else f"{parameter[0]} of shape {parameter[1]}"


@contextlib.contextmanager
def explained(workload: Workload, model: nn.Module) -> Iterator[None]:
    """A context where an error of the workload's code says what a layer was given, or what the model returned.

        with explained(workload, model):
            workload.loss(model, batch)     # ValueError: ...; layer 3, Linear(...), was given a tensor of shape (8, 12)
    """
    running: list[tuple[nn.Module, tuple]] = []         # layers whose forward has not returned, with their arguments
    returned: list[object] = []                         # by the whole model, at last
    thread = get_ident()                                # hooks are those of all threads

    def enter(module: nn.Module, given: tuple) -> None:
        if get_ident() == thread:
            running.append((module, given))

    def leave(module: nn.Module, _: tuple, result: object) -> None:
        while get_ident() == thread and running and running.pop()[0] is not module:     # whose error was caught
            pass
        if get_ident() == thread and module is model:
            returned[:] = [result]
    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):            # of a value that cannot be looked at
            error.__notes__ = [*getattr(error, "__notes__", ()), *_notes(workload, model, running, returned, error)]
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _notes(workload: Workload, model: nn.Module, running: list[tuple[nn.Module, tuple]], returned: list[object],
           error: Exception) -> list[str]:
    if running:
        layer, given = running[-1]
        name, text = next((name for name, module in model.named_modules() if module is layer), ""), repr(layer)
        text = text if len(text) <= LONGEST and "\n" not in text else type(layer).__name__
        where = f"layer {name}" if name else "the model"
        notes = [f"{where}, {text}, was given {', '.join(map(kind_of, given)) or 'nothing'}"]
    else:
        notes = [f"the model returned {kind_of(result)}" for result in returned]
    if notes and not is_of_user_code(error):
        notes.append(describe_build(workload))
    return [note for note in notes if note]


def fit_to_groups(plan: Plan, asked: str, workload: Workload, train: Split, model: nn.Module, device: torch.device,
                  plan_with: Callable[[int], Plan] | None = None) -> tuple[Plan, str]:
    """The plan with group_by_group settled (asked: auto, always or never), and why the model would need it.

    plan_with  makes the plan with the default ghost batch of a model that runs group by group; None: the user set the
               ghost batch
    Raises PlanError if the plan cuts ghost groups that the model needs whole, and what the workload's loss raises.
    """
    reason = bound_to_passes(plan, workload, train, model, device) or next(
        (name for name, is_set in zip(OF_SETTINGS, (plan.exact, plan.precision == "fp16")) if is_set), "")
    group_by_group = asked == "always" or (asked == "auto" and bool(reason))
    if group_by_group and plan_with is not None:
        # at least one group a worker, and the same at any worker count and global batch, so that these change no update
        most = 8 if reason in (PADDED, RANDOM) else 16          # 8 where groups share padding or a random stream alone
        plan = plan_with(max(2, min(most, workload.defaults.get("local_batch", most))))
    plan = replace(plan, group_by_group=group_by_group)
    check_groups(plan, model, reason)
    check_positions(plan)
    check_exact(plan)
    return plan, reason


def bound_to_passes(plan: Plan, workload: Workload, train: Split, model: nn.Module, device: torch.device) -> str:
    """Why the model's updates would depend on how the global batch is cut into passes; empty if they do not. They do if
    its forward pass draws random numbers or updates buffers. To find out, the loss is computed on the first ghost
    group, and the state restored. Raises what the workload's loss raises."""
    norms = [module for module in model.modules() if is_batch_norm(module) and not isinstance(module, BatchNorm)]
    _, drawn, moved = _first_group(plan, workload, train, model, device)
    if norms:
        return f"torch's own {type(norms[0]).__name__}"
    if isinstance(train, MapSplit) and train.collate and any(hasattr(module, "ghosts") for module in model.modules()):
        return PADDED
    if drawn:
        return RANDOM
    return f"the buffer {moved[0]}, which its forward pass changes" if moved else ""


def describe_reason(reason: str) -> str:
    return f"the {'run' if reason in OF_SETTINGS else 'model'} has {reason or 'group_by_group = always'}"


def _first_group(plan: Plan, workload: Workload, train: Split, model: nn.Module, device: torch.device,
                 epoch: int = 0) -> tuple[float, bool, list[str]]:
    """The first ghost group's loss as a step of this epoch computes it, whether that drew from global generators, and
    the buffers that it changed; leaves all as it was."""
    groups = group_bounds(plan.stream.size(0), plan.ghost_batch)
    visits = plan.stream.visits(0, 0, groups[1])
    batch = to_device(train.take(visits._replace(epochs=visits.epochs + epoch)), device, PARAMETERS[plan.precision])
    ghosts = GhostGroups(plan.seed, SingleWorker(), device)
    ghosts.attach(model)
    ghosts.at(epoch, groups, Pass(0, groups[1]))
    with OwnGenerators(device), Buffers(model).kept() as moved, explained(workload, model), \
            autocast(plan.precision, device):
        ghosts.seed_generators()
        with OwnGenerators(device) as generators:
            total, _ = bound_loss(workload, plan.label_smoothing)(model, batch)
            return total.item(), generators.moved(), moved()


def draws_at_visits(plan: Plan, workload: Workload, train: Split, model: nn.Module, device: torch.device) -> bool:
    """Whether an example's gradient differs between visits, by augmentation, dropout or a data set that draws."""
    first, later = (_first_group(plan, workload, train, model, device, epoch)[0] for epoch in (0, 1))
    return not math.isclose(first, later, rel_tol=1e-6)


def how_to_be_faster(reason: str, model: nn.Module) -> str:
    if reason == PADDED:
        return "if all have one length, group_by_group=never is faster"
    return "the modules of hvdscale.modules are faster" if any(map(is_replaced, model.modules())) else ""


def check_positions(plan: Plan) -> None:
    """Raise PlanError if in a step of any size some example would be computed by no worker, or more than once."""
    for size in sorted(plan.stream.sizes):
        parts = sorted(part for passes in plan.passes_by_rank(size) for part in passes if part.stop > part.start)
        if [*(part.start for part in parts), size] != [0, *(part.stop for part in parts)]:
            computed = sum(part.stop - part.start for part in parts)
            raise PlanError(f"the passes of {counted(plan.workers, 'worker')} over a step of {size} examples do not "
                            f"compute each of them once, but {computed} in all. Choose another --ghost-batch or number "
                            "of workers, and report this plan as an error of hvdscale")


def check_groups(plan: Plan, model: nn.Module, reason: str) -> None:
    for batch in plan.batches.sizes:
        whose, share = "global batch" if plan.replicas == 1 else "replica's share", batch // plan.replicas
        groups, accumulate = plan.ghost_groups(share), plan.accumulate_at(batch)
        passes = plan.workers_each * accumulate
        if plan.group_by_group and groups < passes:
            ours = ", or hvdscale.modules (by convert(model)), which let workers share a group"
            raise PlanError(f"{describe_reason(reason)}, so it runs group by group; but a {whose} of {share} has "
                            f"{counted(groups, 'ghost group')} for the passes of {counted(plan.workers_each, 'worker')}"
                            f" x {accumulate}. Use --ghost-batch {max(2, share // passes)} or less, at every worker "
                            f"count, or fewer workers{'' if reason in (PADDED, *OF_SETTINGS) else ours}")
        if plan.cuts_groups(batch) and any(map(is_batch_norm, model.modules())):
            raise PlanError(f"the model has batch-norm, and a ghost group of {plan.ghost_batch} examples cannot be cut "
                            f"into passes of one worker, as {accumulate} passes (accumulate) would at a global batch "
                            f"of {batch}. Use --ghost-batch {max(2, share // accumulate)} or less, or fewer passes")
