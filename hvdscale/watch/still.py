"""Random numbers held still, so that a script's are those of one worker on any number of them.

What torch draws for a batch, in modules or between the batch and them, is one number throughout a tensor, as any of its
dimensions may be the batch; what is drawn in reading an example follows from its index. What else draws is left as it
is: numpy and Python in a model, a permutation, a generator that a data set has made.
"""
from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils import fetch

from .generators import seed_all
from .listener import Listener, Watch

FILLS = ("bernoulli_", "uniform_", "normal_", "exponential_", "random_", "rand", "randn", "rand_like", "randn_like",
         "randint", "randint_like")


class OneNumber(TorchDispatchMode):
    """Draws one number, and fills the tensor with it; torch's generator stays where it is."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name, options = operation.overloadpacket.__name__, dict(kwargs or {})
        given = [one for one in args if isinstance(one, (torch.Tensor, list, tuple))]
        shape = tuple(getattr(given[0], "shape", given[0])) if len(given) == 1 else ()
        if name not in FILLS or not shape:
            return operation(*args, **options)
        whole, state = given[0], torch.get_rng_state()
        if name == "bernoulli_":                        # dropout leaves all in
            return whole.fill_(float(args[1] > 0) if len(args) > 1 else 1.0)
        first = whole[(slice(1),) * len(shape)] if torch.is_tensor(whole) else [1] * len(shape)
        options.pop("generator", None)
        torch.default_generator.manual_seed(0)
        drawn = operation(*(first if one is whole else one for one in args), **options).expand(shape).clone()
        torch.set_rng_state(state)
        return whole.copy_(drawn) if name.endswith("_") else drawn


class Stillness(Listener):
    """Holds still what is drawn from the batch on, or the first call of a module, to the end of the backward pass."""

    _mode: OneNumber | None = None

    def forward_begins(self):
        if self._mode is None and torch.is_grad_enabled():
            self._mode = OneNumber()
            self._mode.__enter__()

    def batch(self, iterator, index, data):
        self.forward_begins()

    def pass_ends(self, roots, line):
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None


class Seeded:
    """A data set whose examples draw by their index."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __getitem__(self, index):
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()
        seed_all(index if isinstance(index, int) else 0)
        try:
            return self._dataset[index]
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
