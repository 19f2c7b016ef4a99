"""Gradients of all parameters in one flat buffer, summed over workers by one allreduce, or by buckets during backward.

Every ``parameter.grad`` is a view into the buffer, so nothing is copied. A few scalars (the tail) travel with it: the
loss and the example count, whose sums the step needs anyway, and the votes of the ranks on leaving the loop.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .workers import Lone


class GradientBuffer:
    """The buffer of a model's trainable parameters, in the order in which backward reaches them, and a tail of scalars.

    bucket_bytes  0: one allreduce after backward; else buckets of about this size, each reduced once its gradients are
                  ready, while backward goes on
    """

    def __init__(self, model: nn.Module, tail: int, workers: Lone, bucket_bytes: int = 0):
        self.workers = workers
        self.parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        gradients = sum(p.numel() for p in self.parameters)
        first = self.parameters[0]
        self.flat = torch.zeros(gradients + tail, dtype=first.dtype, device=first.device)
        self.gradients, self.tail = self.flat[:gradients], self.flat[gradients:]
        self.buckets = self._make_buckets(bucket_bytes if workers.size > 1 else 0)
        self._last_pass = False
        self._waits: list[Callable[[], None]] = []

    def _make_buckets(self, bucket_bytes: int) -> list[_Bucket]:
        buckets, offset, start, members = [], 0, 0, 0
        for i, parameter in enumerate(self.parameters):
            parameter.grad = self.flat[offset:offset + parameter.numel()].view_as(parameter)
            offset, members = offset + parameter.numel(), members + 1
            if bucket_bytes:
                parameter.register_post_accumulate_grad_hook(lambda _, b=len(buckets): self._ready(b))
            last = i == len(self.parameters) - 1
            if last or (bucket_bytes and (offset - start) * self.flat.element_size() >= bucket_bytes):
                buckets.append(_Bucket(len(buckets), self.flat[start:None if last else offset], members))
                start, members = offset, 0
        return buckets

    def _ready(self, bucket: int) -> None:
        # the last bucket holds the tail, which is filled in after backward
        if self._last_pass and bucket < len(self.buckets) - 1:
            self.buckets[bucket].waiting -= 1
            if self.buckets[bucket].waiting == 0:
                self._start(self.buckets[bucket])

    def _start(self, bucket: _Bucket) -> None:
        bucket.started = True
        self._waits.append(self.workers.start_sum_(bucket.values, f"gradients/{bucket.number}"))

    def zero(self) -> None:
        """Forget all gradients and the tail."""
        self.flat.zero_()

    def backward(self, loss: torch.Tensor, last_pass: bool) -> None:
        """Add the loss's gradients; on a step's last pass, ready buckets set off."""
        self._last_pass = last_pass
        for bucket in self.buckets if last_pass else ():
            bucket.waiting, bucket.started = bucket.members, False
        loss.backward()

    def sum_(self) -> None:
        """The sum of buffer and tail over the workers, in place. A parameter without a gradient adds zeros."""
        for bucket in self.buckets:
            if not bucket.started:
                self._start(bucket)
            bucket.started = False
        for wait in self._waits:
            wait()
        self._waits.clear()


class _Bucket:
    def __init__(self, number: int, values: torch.Tensor, members: int):
        self.number, self.values, self.members = number, values, members
        self.waiting, self.started = members, False
