"""The process's global random generators (torch's, numpy's and Python's), which a user's code draws from."""
from __future__ import annotations

import random

import numpy as np
import torch

CPU = torch.device("cpu")


def seed_generators(key: int, gpus: bool = True) -> None:
    """Seed the generators with this key; without ``gpus`` torch's only on the CPU."""
    (torch if gpus else torch.default_generator).manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


def random_state(device: torch.device = CPU) -> dict:
    """The state of the generators, including the GPU's if the device is one: plain values and tensors."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    numbers = (kind, torch.from_numpy(keys.astype(np.int64)), *rest)
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": numbers, "python": random.getstate()}


def set_random_state(state: dict, device: torch.device = CPU) -> None:
    """Restore the state from ``random_state``; the generator of a missing device is left alone."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


class OwnGenerators:
    """A context that restores the generators; ``moved()`` says whether they have been drawn from."""

    def __init__(self, device: torch.device = CPU):
        self._device = device

    def __enter__(self) -> OwnGenerators:
        self._before = random_state(self._device)
        return self

    def moved(self) -> bool:
        return not all(map(np.array_equal, _flatten(self._before), _flatten(random_state(self._device))))

    def __exit__(self, *_: object) -> None:
        set_random_state(self._before, self._device)


def _flatten(state: dict) -> list:
    return [state["torch"], [] if state["cuda"] is None else state["cuda"], state["numpy"][1], state["numpy"][2:],
            state["python"][1]]
