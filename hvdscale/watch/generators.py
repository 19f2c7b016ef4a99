"""Random generators: the states of the global ones, and of those that the script makes, read without drawing; and
random numbers held still, so that a script's are those of one worker on any number of them.

What torch draws for a batch, in modules or between the batch and them, is one number throughout a tensor, as any of its
dimensions may be the batch; what is drawn in reading an example follows from its index. What else draws is left as it
is: numpy and Python in a model, a permutation, a generator that a data set has made.
"""

import functools
import hashlib
import random
from collections import deque
from weakref import WeakSet

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils import fetch

from .lines import called_by_library
from .listener import Listener, Watch
from .remarks import OWN

FILLS = ("bernoulli_", "uniform_", "normal_", "exponential_", "random_", "rand", "randn", "rand_like", "randn_like",
         "randint", "randint_like")
KEPT = 64                       # of numpy's generators that allow no weak reference

_made: WeakSet = WeakSet()      # generators that the script has made
_kept: deque = deque(maxlen=KEPT)
_drawn = [0]                    # numbers drawn from a random.Random


def install(watch: Watch) -> None:
    patches = watch.patches
    patches.put(torch, "Generator", _tracked(torch.Generator))
    for name in ("RandomState", "Generator"):
        patches.put(np.random, name, _tracked(getattr(np.random, name)))

    def keep(made, *_, **__):
        if made not in _kept:
            _kept.append(made)

    def count(generator, *_):
        if generator is not random._inst and not called_by_library(random.__file__):    # type: ignore[attr-defined]
            _drawn[0] += 1
    patches.after(np.random, "default_rng", keep)
    for name in ("random", "getrandbits"):
        patches.before(random.Random, name, count)


def seed_all(seed: int) -> None:
    """Seed the global generators, for a script that does not."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def states() -> dict[str, str]:
    kind, words, *rest = np.random.get_state()
    _, of_python, spare = random.getstate()             # None has another hash in each process before Python 3.12
    found = {"torch": digest_of(torch.get_rng_state().numpy().tobytes()),
             "numpy": digest_of(words.tobytes() + repr(rest).encode()),
             "random": str(hash((of_python, spare or 0.0)))}
    if torch.cuda.is_initialized():
        found["cuda"] = digest_of(torch.cuda.get_rng_state().numpy().tobytes())
    return found


def snapshot() -> tuple[dict[str, str], dict[int, str]]:
    """The states of the global generators by name, and a digest of each that the script made; 0: any random.Random."""
    return states(), {0: str(_drawn[0]), **{id(one): _state_of(one) for one in (*_made, *_kept)}}


def moved_since(before: tuple[dict[str, str], dict[int, str]]) -> frozenset[str]:
    """The global generators that have moved since a snapshot, and OWN if any other has, or is new."""
    now, own = snapshot()
    moved = {name for name, state in now.items() if state != before[0].get(name)}
    return frozenset(moved | {OWN for one, state in own.items() if state != before[1].get(one)})


def _state_of(generator) -> str:
    if isinstance(generator, torch._C.Generator):
        return digest_of(generator.get_state().numpy().tobytes())
    state = generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state
    return digest_of(repr(state).encode())


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _tracked(original: type) -> type:
    """A class whose instances are counted, and which is the original one to isinstance and issubclass."""
    class Alike(type(original)):         # type: ignore[misc]
        def __instancecheck__(cls, one):
            return isinstance(one, original)

        def __subclasscheck__(cls, one):
            return issubclass(one, original)

    class Tracked(original, metaclass=Alike):    # type: ignore[misc,valid-type]
        def __new__(cls, *args, **options):
            one = super().__new__(cls, *args, **options)
            if not called_by_library(np.__file__):
                _made.add(one)
            return one
    functools.update_wrapper(Tracked, original, updated=())
    return Tracked


class OneNumber(TorchDispatchMode):
    """Draws one number, and fills the tensor with it; torch's generator stays where it is."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name, options = operation.overloadpacket.__name__, dict(kwargs or {})
        given = [arg for arg in args if isinstance(arg, (torch.Tensor, list, tuple))]
        shape = tuple(getattr(given[0], "shape", given[0])) if len(given) == 1 else ()
        if name not in FILLS or not shape:
            return operation(*args, **options)
        whole, state = given[0], torch.get_rng_state()
        if name == "bernoulli_":                        # dropout leaves all in
            return whole.fill_(float(args[1] > 0) if len(args) > 1 else 1.0)
        first = whole[(slice(1),) * len(shape)] if torch.is_tensor(whole) else [1] * len(shape)
        options.pop("generator", None)
        torch.default_generator.manual_seed(0)
        drawn = operation(*(first if arg is whole else arg for arg in args), **options).expand(shape).clone()
        torch.set_rng_state(state)
        return whole.copy_(drawn) if name.endswith("_") else drawn


class Stillness(Listener):
    """Holds still what is drawn from the batch on, or the first call of a module, to the end of the backward pass."""

    _mode: OneNumber | None = None

    def forward_begins(self, module):
        if self._mode is None and torch.is_grad_enabled():
            self._mode = OneNumber()
            self._mode.__enter__()

    def batch(self, iterator, index, data):
        self.forward_begins(None)

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


def hold_still(watch: Watch) -> None:
    def read(original, fetcher, possibly_batched_index):
        dataset, fetcher.dataset = fetcher.dataset, Seeded(fetcher.dataset)
        try:
            return original(fetcher, possibly_batched_index)
        finally:
            fetcher.dataset = dataset
    watch.listeners = (*watch.listeners, Stillness())
    watch.patches.around(fetch._MapDatasetFetcher, "fetch", read)
