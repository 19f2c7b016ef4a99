"""Random numbers held still, so that a script's are those of one worker on any number of them.

What torch draws for a batch, in modules or between the batch and them, is the same for each of its rows; what is drawn
in reading an example follows from its index. Generators stay where they are. What else draws is left as it is: numpy
and Python in a model, a permutation, generators that the script has made.
"""
from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils import fetch

from .generators import seed_all
from .listener import Listener, Watch

BY_ROW = ("bernoulli_", "uniform_", "normal_", "exponential_", "random_", "rand", "randn", "rand_like", "randn_like",
          "randint", "randint_like")


class Rows(TorchDispatchMode):
    """Draws one row, and repeats it."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        options = dict(kwargs or {})
        if operation.overloadpacket.__name__ not in BY_ROW or any(isinstance(one, torch.Tensor) for one in args[1:]):
            return operation(*args, **options)
        options.pop("generator", None)
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(0)
        try:
            return self._repeated(operation, args, options)
        finally:
            torch.set_rng_state(state)

    @staticmethod
    def _repeated(operation, args: tuple, options: dict) -> torch.Tensor:
        at = next((at for at, one in enumerate(args) if isinstance(one, (torch.Tensor, list, tuple))), 0)
        given = args[at]
        shape = given.shape if isinstance(given, torch.Tensor) else given
        if len(shape) < 1 or shape[0] < 2:
            return operation(*args, **options)
        row = given[:1] if isinstance(given, torch.Tensor) else [1, *given[1:]]
        drawn = operation(*args[:at], row, *args[at + 1:], **options).expand(tuple(shape))
        return given.copy_(drawn.clone()) if operation.overloadpacket.__name__.endswith("_") else drawn.clone()


class Stillness(Listener):
    """Holds still what is drawn from the batch on, or the first call of a module, to the end of the backward pass."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    def forward_begins(self):
        if self._rows is None and torch.is_grad_enabled():
            self._rows = Rows()
            self._rows.__enter__()

    def batch(self, iterator, index, data):
        self.forward_begins()

    def pass_ends(self, roots, line):
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.__exit__(None, None, None)


class Seeded:
    """A data set whose examples draw by their index."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        with _seeded(index):
            return self._dataset[index]


@contextlib.contextmanager
def _seeded(index: Any) -> Iterator[None]:
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    seed_all(index if isinstance(index, int) else 0)
    try:
        yield
    finally:
        for restore, state in zip((torch.set_rng_state, np.random.set_state, random.setstate), before):
            restore(state)


def install(watch: Watch) -> None:
    def read(original, fetcher, possibly_batched_index):
        dataset, fetcher.dataset = fetcher.dataset, Seeded(fetcher.dataset)
        try:
            return original(fetcher, possibly_batched_index)
        finally:
            fetcher.dataset = dataset
    watch.listeners = (*watch.listeners, Stillness())
    watch.patches.around(fetch._MapDatasetFetcher, "fetch", read)
