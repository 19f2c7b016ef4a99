"""Gradients of all parameters in one flat buffer, summed over workers by one allreduce, or by buckets during backward,
or without rounding.

The other sums of a step are reduced with them: statistics that modules collect, and a few scalars (the tail), such as
the loss, the example count, and the ranks' votes to leave the loop. A single worker has nothing to sum, so there the
gradients stay where backward leaves them, unless the caller wants them flat.

    buffer.begin()
    buffer.backward(loss, last_pass=True)      once per pass; gradients of a step's passes add up
    buffer.finish()
    tail = buffer.sum_(tail)                   every parameter.grad is the sum over the workers, a view into the buffer
"""

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..modules.layers import is_batch_norm
from ..plan.plan import Plan
from ..plan.shards import Pass, group_bounds
from ..workers.group import Workers

MOST_GROUPS = 2 ** 14
UNITS = tuple(2.0 ** power for power in (35, -5, -45, -85))
REACH = 2.0 ** 39
HUGE = REACH * UNITS[0]
MAIN, LAST = 2, len(UNITS) - 1
CHUNK = 2 ** 16         # values that are split at a time on a CPU, so that they stay in its cache
ROUNDING = 1.5 * 2.0 ** 52          # times a power of two: added and subtracted, it rounds to multiples of that
SHARE = 8                   # at one worker, 1 / SHARE of the batch is computed twice
COLUMNS = ("local_sqnorm", "reduced_sqnorm", "local_examples")


class _Bucket:
    def __init__(self, name: str):
        self.name, self.gradients, self.slots, self.missing = name, None, [], 0


class _Slot:
    def __init__(self, parameter: nn.Parameter, view: torch.Tensor, bucket: _Bucket):
        self.parameter, self.view, self.bucket, self.missing = parameter, view, bucket, False
        bucket.slots.append(self)


class GradientBuffer:
    """The buffer of a model's trainable parameters, in the order in which backward reaches them, and a tail of scalars.

    tail          number of scalars;  statistics  number of values that modules add up in ``self.statistics``
    bucket_bytes  0: one allreduce after backward; else buckets of about this size, each reduced once its gradients are
                  ready, during the backward pass
    wire          the type in which gradients are sent; None: their own, with the rest in the last bucket's allreduce
    flat          keep the gradients in the buffer at one worker, too
    """

    def __init__(self, model: nn.Module, tail: int, workers: Workers, bucket_bytes: int = 0, statistics: int = 0,
                 wire: torch.dtype | None = None, flat: bool = False):
        parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        self._in_place = workers.size == 1 and wire is None and not flat
        size = 0 if self._in_place else sum(p.numel() for p in parameters)
        self._flat = torch.zeros(size + statistics + tail, dtype=parameters[0].dtype, device=parameters[0].device)
        self._rest = self._flat[size:]
        self.statistics, self._tail = self._rest[:statistics], self._rest[statistics:]
        self._parameters, self._workers, self._last_pass, self._wire = parameters, workers, False, wire
        self._buckets = [] if self._in_place else self._cut(parameters, bucket_bytes)
        self._slots = [slot for bucket in self._buckets for slot in bucket.slots]
        self._waits: list[Callable[[], None]] = []
        self._started = 0           # buckets, but the last
        self._note: Callable[[torch.Tensor], None] | None = None
        if len(self._buckets) > 1:
            for number, slot in enumerate(self._slots):
                slot.parameter.register_post_accumulate_grad_hook(partial(_arrived, weakref.ref(self), number))

    def _cut(self, parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
        buckets, start, end = [_Bucket("gradients/0")], 0, 0
        for parameter in parameters:
            if bucket_bytes and (end - start) * self._flat.element_size() >= bucket_bytes:
                buckets[-1].gradients = self._flat[start:end]
                buckets.append(_Bucket(f"gradients/{len(buckets)}"))
                start = end
            view = self._flat[end:end + parameter.numel()].view_as(parameter)
            if parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
                view = view.as_strided(parameter.shape, parameter.stride())     # its own order in memory
            _Slot(parameter, view, buckets[-1])
            end += parameter.numel()
        buckets[-1].gradients = self._flat[start:end]
        return buckets

    @property
    def parts(self) -> list[torch.Tensor]:
        """The gradients, to be changed in place: the flat buffer, or each parameter's where they are not flat."""
        return [p.grad for p in self._parameters] if self._in_place else [self.gradients]

    @property
    def gradients(self) -> torch.Tensor:
        """All gradients, flat: the buffer, or a copy where they are not in it."""
        if self._in_place:
            return torch.cat([p.grad.flatten() for p in self._parameters])
        return self._flat[:len(self._flat) - len(self._rest)]

    def begin(self, note: Callable[[torch.Tensor], None] | None = None) -> None:
        """Start a new step; ``note`` is called with this rank's own gradients, bucket by bucket, before the sum."""
        self._last_pass, self._note, self._started = False, note, 0
        if self.statistics.numel():
            self.statistics.zero_()
        for parameter in self._parameters:
            parameter.grad = None
        for slot in self._slots:
            slot.missing = True
        for bucket in self._buckets:
            bucket.missing = len(bucket.slots)

    def backward(self, loss: torch.Tensor, last_pass: bool) -> None:
        """Add the loss's gradients; a step's last pass starts the reduction of full buckets."""
        self._last_pass = last_pass
        loss.backward()         # without an argument: that imports sympy, half a second
        self._last_pass = False

    def end_pass(self, scalars: Callable[[], Sequence[float]]) -> None:
        """End a pass with these values of its own; only ExactBuffer sums each pass apart."""

    def _densify(self) -> None:
        for parameter in self._parameters:
            if (gradient := parameter.grad) is not None and gradient.is_sparse:
                parameter.grad = gradient.to_dense()

    def without_gradient(self) -> list[nn.Parameter]:
        """The parameters that got no gradient in the step's backward passes."""
        if self._in_place:
            return [p for p in self._parameters if p.grad is None]
        return [slot.parameter for slot in self._slots if slot.missing and slot.parameter.grad is None]

    def finish(self) -> None:
        """End the passes: put the remaining gradients in the buffer, zeros for a parameter without one."""
        self._densify()
        if self._in_place:
            for parameter in self.without_gradient():
                parameter.grad = torch.zeros_like(parameter)
        self._take([slot for slot in self._slots if slot.missing])
        if self._note:
            self._note(self._buckets[-1].gradients)
            self._note = None

    def sum_(self, tail: Sequence[float]) -> list[float]:
        """Sum gradients, statistics and tail over the workers, once finished; returns the tail's sums."""
        if self._in_place:
            return [*tail]
        self._tail.copy_(torch.tensor(tail, dtype=self._flat.dtype))
        self._start(self._buckets[-1])
        for wait in self._waits:
            wait()
        self._waits.clear()
        for slot in self._slots:
            slot.parameter.grad = slot.view
        return self._tail.tolist()

    def _take(self, slots: Sequence[_Slot]) -> None:
        """Move the gradients of these parameters to the buffer, and reduce buckets that are full, in order.
        torch.distributed pairs the ranks' collectives by their order, and one rank may lack a gradient."""
        for slot in slots:
            if slot.parameter.grad is None:
                slot.view.zero_()
            slot.missing = False
            slot.bucket.missing -= 1
        if there := [slot for slot in slots if slot.parameter.grad is not None]:
            torch._foreach_copy_([slot.view for slot in there], [slot.parameter.grad for slot in there])
        for slot in there:
            slot.parameter.grad = None
        while self._started < len(self._buckets) - 1 and self._buckets[self._started].missing == 0:
            bucket = self._buckets[self._started]
            self._started += 1
            if self._note:
                self._note(bucket.gradients)
            self._start(bucket)

    def _start(self, bucket: _Bucket) -> None:
        last = bucket is self._buckets[-1]
        if self._wire is None:
            values = self._flat[bucket.gradients.storage_offset():] if last else bucket.gradients
            self._waits.append(self._workers.start_sum_(values, bucket.name))
            return
        sent = bucket.gradients.to(self._wire)
        self._waits += [self._workers.start_sum_(sent, bucket.name), lambda: bucket.gradients.copy_(sent)]
        if last:
            self._waits.append(self._workers.start_sum_(self._rest, "gradients/rest"))


def _arrived(buffer: weakref.ref[GradientBuffer], number: int, parameter: nn.Parameter) -> None:
    """A parameter's hook, called when backward has computed its gradient. It must not hold a reference to the buffer,
    which holds the parameter: Python's garbage collector does not look into torch's hooks, so buffer and model would
    never be freed."""
    there = buffer()
    if there is not None and there._last_pass and not parameter.grad.is_sparse:     # else taken when all have arrived
        there._take([there._slots[number]])


def check_exact(plan: Plan) -> None:
    groups = max(map(plan.ghost_groups, plan.batches.sizes))
    if plan.exact and groups > MOST_GROUPS:
        raise PlanError(f"exact = true sums up to {MOST_GROUPS} ghost groups without rounding, and a step has "
                        f"{groups}; use a larger --ghost-batch")


class ExactBuffer(GradientBuffer):
    """A GradientBuffer whose passes are ghost groups, each ended by ``end_pass``, and whose sums are not rounded: the
    same bits in any order, so at any number of workers and passes.

    Each ghost group's gradients, statistics and loss are computed alone, and values are split into words, each a
    multiple of its unit. Words of up to MOST_GROUPS groups add up in float64 without rounding, whatever the order, so
    an ordinary allreduce sums them. Of CHUNK neighbours the first word is that of the smallest unit that reaches the
    largest of them, the last MAIN, or LAST where the type has more digits of the largest. What is below is dropped:
    that is the only rounding, and the same wherever the group is computed. Most values of an fp32 model have MAIN
    alone. It is sent in each step, the others where some group has them.

        unit                 2^35    2^-5    2^-45   2^-85
        reaches values to    2^74    2^34    2^-6    2^-46

    scalars  the number of values beside the gradients and statistics that ``end_pass`` is given: the first is the first
             of the tail, the others are its last
    """

    def __init__(self, model: nn.Module, tail: int, workers: Workers, statistics: int, scalars: int):
        super().__init__(model, tail, workers, statistics=statistics, flat=True)
        self._arrays, device, numbers = len(self._flat) - tail, self._flat.device, len(UNITS)
        self._chunk = CHUNK if device.type == "cpu" else self._arrays
        self._group, self._spare = torch.zeros(2, max(self._chunk, scalars), dtype=torch.float64, device=device)
        sizes = self._arrays, numbers * scalars, numbers + 2 + tail
        self._sent = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._main, scalar_words, self._counts = self._sent.split(sizes)
        self._scalar_words = dict(enumerate(scalar_words.view(numbers, scalars)))
        self._words: dict[int, Tensor] = {}         # of the arrays, by number: those that some group of this rank has
        self._not_finite = [0, 0]                   # groups of this rank with such arrays, and with such scalars

    def begin(self, note: Callable[[Tensor], None] | None = None) -> None:
        super().begin(note)
        self._sent.zero_()
        self._words, self._not_finite = {MAIN: self._main}, [0, 0]

    def backward(self, loss: Tensor, last_pass: bool) -> None:
        super().backward(loss, last_pass=False)

    def end_pass(self, scalars: Callable[[], Sequence[float]]) -> None:
        """Add what the ghost group's pass left in the gradients and in ``statistics``, and the scalars."""
        missing = {id(parameter) for parameter in super().without_gradient()}
        self._densify()
        self._take(self._slots)
        for slot in self._slots:
            slot.missing = id(slot.parameter) in missing
        if self._note:
            self._note(self.gradients)
        finite = [self._add(self._flat[at:min(at + self._chunk, self._arrays)], self._words, at)
                  for at in range(0, self._arrays, self._chunk)]
        self._not_finite[0] += not all(finite)
        self._not_finite[1] += not self._add(torch.tensor(scalars(), dtype=torch.float64), self._scalar_words)
        self.statistics.zero_()

    def _add(self, values: Tensor, words: dict[int, Tensor], start: int = 0) -> bool:
        """Add a group's values, on which alone their split depends, to the words; False if one is not below HUGE."""
        stop = start + len(values)
        low, high = torch.aminmax(values)
        largest = max(-low.item(), high.item())
        if not largest < HUGE:                                  # or NaN
            return False
        if largest == 0:
            return True
        first = max(number for number, unit in enumerate(UNITS) if largest < REACH * unit)
        last = max(first, MAIN) if UNITS[MAIN] <= largest * torch.finfo(values.dtype).eps / 8 else LAST
        group, spare = self._group[:stop - start].copy_(values), self._spare[:stop - start]
        for number in range(first, last + 1):
            if number not in words:
                words[number] = torch.zeros_like(self._main)
            constant, word = ROUNDING * UNITS[number], words[number][start:stop]
            if number == last:
                word.add_(group.add_(constant).sub_(constant))
            else:
                word.add_(torch.add(group, constant, out=spare).sub_(constant))
                group.sub_(spare)
        return True

    def finish(self) -> None:
        """Nothing is left to do: each pass has ended."""

    def sum_(self, tail: Sequence[float]) -> list[float]:
        """Sum words and tail over the workers, rounding once a word; NaN where a value is not finite or beyond HUGE."""
        counts = [*(number in self._words for number in range(len(UNITS))), *self._not_finite]
        self._counts.copy_(torch.tensor([*counts, *tail], dtype=torch.float64))
        self._workers.sum_(self._sent, "gradients/0")
        found = self._counts.tolist()
        *used, bad_arrays, bad_scalars = found[:len(counts)]
        words = {MAIN: self._main}
        for number in range(len(UNITS)):
            if used[number] and number != MAIN:
                word = self._words[number] if number in self._words else torch.zeros_like(self._main)
                words[number] = self._workers.sum_(word, f"gradients/word{number}")
        total, *smaller = (words[number] for number in sorted(words))
        for word in smaller:
            total.add_(word)
        self._flat[:self._arrays].copy_(total.fill_(math.nan) if bad_arrays else total)
        for slot in self._slots:
            slot.parameter.grad = slot.view
        first, *last = [math.nan if bad_scalars else sum(values) for values in zip(
            *(word.tolist() for word in self._scalar_words.values()))]
        rest = found[len(counts):]
        return [first, *rest[1:len(rest) - len(last)], *last]


def why_not_measured(plan: Plan, model: nn.Module) -> str:
    """Why no step can be measured though the plan asks for it; empty if steps can be, or need not be."""
    if not plan.noise_steps or any(can_measure(plan, model, batch) for batch in plan.batches.sizes):
        return ""
    refusal = "the gradient noise scale is not measured: "
    if not joins_examples(plan, model):
        return refusal + "a batch of one example has none"
    examples = f"{min(plan.global_batch, plan.ghost_batch)} examples, which " + (
        "passing group by group keeps whole" if plan.group_by_group else "batch-norm keeps whole")
    why = f"with one ghost group of {examples}, a step has no two parts to compare"
    if plan.workers > 1:
        why = (f"with ghost groups of {examples}, spread over several workers, a worker has no separate part of a step "
               "to compare")
    return f"{refusal}{why}; use a smaller --ghost-batch"


def can_measure(plan: Plan, model: nn.Module, batch: int) -> bool:
    """Whether a step of one of the schedule's batches has two parts to compare."""
    alone = plan.workers == 1 or plan.exact
    cut = plan.ghost_groups(batch) < 2 if alone else any(part.shared for part in plan.passes(batch, 0))
    return batch > 1 and not (cut and joins_examples(plan, model))


def joins_examples(plan: Plan, model: nn.Module) -> bool:
    """Whether an example's gradient depends on the others of its ghost group, so that shares must be whole groups."""
    return plan.group_by_group or any(map(is_batch_norm, model.modules()))


class Shares(NamedTuple):
    """How a step is split for the measurement."""

    batch: int
    examples: int       # this rank's
    first: Pass         # the first share, at one worker
    number: int         # of shares


class GradientNoise:
    """The gradient measurements of a run, every ``plan.noise_steps`` steps. Gradients are those of a GradientBuffer: of
    the sum of losses, divided by the step's batch, times the loss scale.

    Squared gradient norms of a measured step, of each share and of the reduced gradient; see analysis/noise.py.

    With several workers a share is a worker's: its squared norm is taken before the reduction, and reduced in its tail.
    At one worker the first examples (an eighth of the batch, or a ghost group) are one share, whose gradient is
    computed once more before the step; the rest is the other share, whose gradient is the whole gradient minus the
    first. Either way the step's update is bit-identical to an unmeasured one, and no state is kept between
    measurements. Of an exact plan each ghost group is a share, at any number of workers.

        noise.first(step)                   the pass that is computed once more, at one worker
        noise.keep(gradients, count)        its result
        note = noise.begin(step)            before the step's own passes
        note(gradients)                     this rank's own, a bucket at a time, before the reduction
        tail = noise.tail(count, scale)     to be summed over the workers
        noise.columns(...)                  the row's values
    """

    def __init__(self, plan: Plan, model: nn.Module, rank: int):
        self._stream, self._by_group = plan.stream, bool(plan.exact)
        self._alone = plan.workers == 1 and not self._by_group
        self._every = 0 if why_not_measured(plan, model) else plan.noise_steps
        self._by_batch: dict[int, Shares] = {}
        for batch in plan.batches.sizes if self._every else ():
            if can_measure(plan, model, batch):
                bounds = group_bounds(batch, plan.ghost_batch)
                size = bounds[1] if joins_examples(plan, model) else max(1, batch // SHARE)
                self._by_batch[batch] = Shares(
                    batch, sum(part.stop - part.start for part in plan.passes(batch, rank)),
                    Pass(0, size, shared=size not in bounds), len(bounds) - 1 if plan.exact else max(2, plan.workers))
        self.size = 1 if self._every and not self._alone else 0         # of the tail
        self._shares: Shares | None = None              # of the step; None: it is not measured
        self._own: float | None = None                  # the squared norm; None: likewise
        self._kept: tuple[Tensor, float] | None = None

    def first(self, step: int) -> Pass | None:
        """The pass whose gradients ``keep`` needs before the step; None if there is none."""
        shares = self._due(step)
        return shares.first if self._alone and shares else None

    def keep(self, gradients: Tensor, count: float) -> None:
        self._kept = gradients.clone(), count

    def begin(self, step: int) -> Callable[[Tensor], None] | None:
        """Start the step's own passes; returns the function to call on this rank's gradients before the reduction."""
        self._shares = self._due(step)
        self._own = 0.0 if self._shares else None
        return self._note if self._own is not None and not self._alone else None

    def tail(self, count: float, scale: float, examples: int | None = None) -> list[float]:
        """The squared norm of this rank's mean gradient, or of a noted ghost group's, weighted by the examples."""
        if not self.size or self._own is None or not count:
            return [0.0] * self.size
        batch = self._shares.batch
        return [(batch / count / scale) ** 2 * (examples or self._shares.examples) / batch * self._own]

    def columns(self, buffer: GradientBuffer, tail: Sequence[float], count: float, scale: float) -> dict[str, float]:
        """The row's values by column, from what is summed over the workers; empty if not measured, or not finite."""
        if self._own is None:
            return {}
        gradients, batch = buffer.gradients, self._shares.batch
        reduced = (batch / count / scale) ** 2 * _sqnorm(gradients)
        local = 0.0 if self._alone else tail[0]
        if self._alone:                     # the summed tail of two shares: the kept gradient, and the rest
            (first, first_count), self._kept = self._kept, None
            size = self._shares.first.stop
            for share, share_count, examples in ((first, first_count, size),
                                                 (gradients - first, count - first_count, batch - size)):
                weight = (batch / share_count / scale) ** 2 * examples / batch if share_count else math.nan
                local += weight * _sqnorm(share)
        return {"local_sqnorm": local, "reduced_sqnorm": reduced,
                "local_examples": batch / self._shares.number} if math.isfinite(reduced + local) else {}

    def _note(self, gradients: Tensor) -> None:
        self._own = _sqnorm(gradients) + (0.0 if self._by_group else self._own)

    def _due(self, step: int) -> Shares | None:
        """The shares of a step to measure: at the interval, if it has a full batch; else None."""
        return self._by_batch.get(self._stream.size(step)) if self._every and step % self._every == 0 else None


def _sqnorm(gradients: Tensor) -> float:
    return gradients.dot(gradients).item()
