"""Replicas that train apart and are synchronized now and then: their keys settled, and what they do not go with."""

from ..errors import PlanError, UsageError
from ..formatting.numbers import counted, listed
from .settings import Settings
from .shards import Stream, group_bounds

NESTEROV, FULL, BF16 = "nesterov", "full", "bf16"
# settings that are not defined for several replicas' updates, and what to do instead
REFUSED = {"precision": ("fp16", "choose bf16 or fp32"), "compression": ("fp16", "leave it out"),
           "exact": (True, "leave it out")}


def settle_local_steps(settings: Settings, stream: Stream, budget_steps: int) -> dict | None:
    """The plan's ``local_steps``: replicas, sync_every in steps, outer_lr and outer_momentum of the outer SGD step, and
    exchange if that is compressed.

    None where the run is the synchronous one: also of one replica that is averaged with no other. Averaging is an outer
    step at rate 1 without momentum. Raises PlanError for what replicas do not go with, UsageError for an exchange that
    is none.
    """
    replicas, length, nesterov = settings.replicas, settings.sync_every, settings.outer == NESTEROV
    compressed = {} if exchange_rank(settings.exchange) is None else {"exchange": settings.exchange}
    if length is None:
        for acts, what in ((replicas > 1, f"replicas = {replicas}"), (nesterov, f"outer = {NESTEROV}"),
                           (compressed, f"exchange = {settings.exchange}")):
            if acts:
                raise PlanError(f"{what} acts only with sync_every; give one, such as 16 steps")
        return None
    if length.unit != "steps" and not stream.batches.is_constant:
        raise PlanError(f"sync_every = {length} is not one number of steps where the batch changes; give it in steps")
    steps = length.in_steps(stream)
    if 0 < budget_steps < steps:
        long = "" if length.unit == "steps" else f", {counted(steps, 'step')}"
        raise PlanError(f"sync_every = {length}{long}: that is beyond the budget of {budget_steps} steps; give fewer, "
                        "or a longer budget")
    if replicas == 1 and not nesterov and not compressed:
        return None
    for name, (value, instead) in REFUSED.items():
        if getattr(settings, name) == value:
            raise PlanError(f"{name} = {str(value).lower()} does not go with sync_every, under which each replica has "
                            f"its own gradients; {instead}")
    if settings.noise_every:
        raise PlanError(f"noise_every = {settings.noise_every} does not go with sync_every, under which no gradient of "
                        "the global batch is computed; leave it out, or measure in a run without sync_every")
    return {"replicas": replicas, "sync_every": steps, "outer_lr": settings.outer_lr if nesterov else 1.0,
            "outer_momentum": settings.outer_momentum if nesterov else 0.0, **compressed}


def exchange_rank(exchange: str) -> int | None:
    """The rank of PowerSGD, 0 for bf16, None for changes that are sent in full; raises UsageError for other texts."""
    word, _, rank = exchange.partition(":")
    if word == "powersgd" and rank.isdecimal() and int(rank) > 0:
        return int(rank)
    if exchange not in (FULL, BF16):
        raise UsageError(f"exchange = {exchange!r} is none of {FULL}, {BF16} and powersgd:R, such as powersgd:4")
    return 0 if exchange == BF16 else None


def refuse_uneven_replicas(replicas: int, stream: Stream, workers: int) -> None:
    """Raise PlanError unless all replicas have as many examples of each step, and as many workers, or workers as many
    of them."""
    for size in sorted(stream.sizes):
        if left := size % replicas:
            near = [str(fits) for fits in (size - left, size - left + replicas) if fits]
            carry = ", or last_batch = carry" if stream.last_batch == "short" else ""
            raise PlanError(f"replicas = {replicas} do not divide a step of {size} examples; use a batch of "
                            f"{listed(near, 'or')}, or another number of replicas{carry}")
    if replicas % workers and workers % replicas:
        fit = [str(count) for count in range(1, replicas + 1) if replicas % count == 0]
        raise PlanError(f"{counted(workers, 'worker')} cannot share replicas = {replicas} evenly; use "
                        f"{listed(fit, 'or')} workers, or a multiple of {replicas}")


def settle_ghost_batch(asked: int, typed: bool, replicas: int, stream: Stream) -> int:
    """The ghost batch, by default the largest up to ``asked`` of which no group spans two replicas; raises PlanError if
    there is none, or the one that was typed is none."""
    def uneven(ghost_batch: int) -> list[int]:
        return [size for size in sorted(stream.sizes) if (len(group_bounds(size, ghost_batch)) - 1) % replicas]

    spanned = uneven(asked)
    if not spanned:
        return asked
    most = min(asked, min(stream.sizes) // replicas)
    fits = next((smaller for smaller in range(most, 1, -1) if not uneven(smaller)), None)
    if fits and not typed:
        return fits
    raise PlanError(f"ghost_batch = {asked}: in a step of {spanned[0]} examples a ghost group would span two of "
                    f"replicas = {replicas}; use {f'--ghost-batch {fits}' if fits else 'a larger batch'}")
