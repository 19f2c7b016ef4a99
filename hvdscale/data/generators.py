"""The process's own random generators, torch's, numpy's and Python's: what a user's code draws from.

    with OwnGenerators() as generators:     whatever is drawn inside, they stand afterwards as before
        seed_generators(key)
        generators.moved()
"""
from __future__ import annotations

import random

import numpy as np
import torch

CPU = torch.device("cpu")


def seed_generators(key: int, gpus: bool = True) -> None:
    """Start the generators from this key; without ``gpus`` torch's on the CPU alone."""
    (torch if gpus else torch.default_generator).manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


def random_state(device: torch.device = CPU) -> dict:
    """Where the generators stand, that of a GPU where the device is one: plain values and tensors."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    numbers = (kind, torch.from_numpy(keys.astype(np.int64)), *rest)
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": numbers, "python": random.getstate()}


def set_random_state(state: dict, device: torch.device = CPU) -> None:
    """Set the generators as ``random_state`` gave them; one of a device that is not here stays."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


class OwnGenerators:
    """A context that leaves the generators as it found them; ``moved()`` says whether they have been drawn from."""

    def __init__(self, device: torch.device = CPU):
        self._device = device

    def __enter__(self) -> OwnGenerators:
        self._before = random_state(self._device)
        return self

    def moved(self) -> bool:
        """Whether some generator stands elsewhere than before."""
        return not all(map(np.array_equal, _flat(self._before), _flat(random_state(self._device))))

    def __exit__(self, *_: object) -> None:
        set_random_state(self._before, self._device)


def _flat(state: dict) -> list:
    return [state["torch"], [] if state["cuda"] is None else state["cuda"], state["numpy"][1], state["numpy"][2:],
            state["python"][1]]
