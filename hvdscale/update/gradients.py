"""Gradients of all parameters in one flat buffer, summed over workers by one allreduce, or by buckets during backward.

The other sums of a step are reduced with them: statistics that modules collect, and a few scalars (the tail), such as
the loss, the example count, and the ranks' votes to leave the loop. A single worker has nothing to sum, so there the
gradients stay where backward leaves them, unless the caller wants them flat.

    buffer.begin()
    buffer.backward(loss, last_pass=True)      once per pass; gradients of a step's passes add up
    tail = buffer.sum_(tail)                   every parameter.grad is the sum over the workers, a view into the buffer
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from ..workers.group import Workers


class _Bucket:
    def __init__(self, name: str):
        self.name, self.gradients, self.slots = name, None, []
        self.missing = 0


class _Slot:
    def __init__(self, parameter: nn.Parameter, view: torch.Tensor, bucket: _Bucket):
        self.parameter, self.view, self.bucket = parameter, view, bucket
        self.missing = False
        bucket.slots.append(self)


def _arrived(buffer: weakref.ref[GradientBuffer], number: int, parameter: nn.Parameter) -> None:
    """A parameter's hook, called when backward has computed its gradient. It must not hold a reference to the buffer,
    which holds the parameter: Python's garbage collector does not look into torch's hooks, so buffer and model would
    never be freed."""
    there = buffer()
    if there is not None and there._last_pass and not parameter.grad.is_sparse:     # else taken when all have arrived
        there._take([there._slots[number]])


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
        if len(self.statistics):
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
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()

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
        """Sum gradients, zeros where a rank has none, statistics and tail over the workers; returns the tail's sums."""
        self.finish()
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
        there = [slot for slot in slots if slot.parameter.grad is not None]
        if there:
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
            values = bucket.gradients
            if last:
                values = self._flat[values.storage_offset():]
            self._waits.append(self._workers.start_sum_(values, bucket.name))
            return
        sent = bucket.gradients.to(self._wire)
        self._waits.append(self._workers.start_sum_(sent, bucket.name))
        self._waits.append(lambda: bucket.gradients.copy_(sent))
        if last:
            self._waits.append(self._workers.start_sum_(self._rest, "gradients/rest"))
