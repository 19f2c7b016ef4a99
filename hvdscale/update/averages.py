"""Weights for an evaluation: the averages of a run's weights, and those that an optimizer makes from its own."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..plan.plan import Problem


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
