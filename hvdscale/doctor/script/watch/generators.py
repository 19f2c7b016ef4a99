"""The global random generators: their states before and after, read without drawing."""
from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from ..record import Draws


def states() -> dict[str, str]:
    """A digest of the state of each global generator."""
    kind, words, *rest = np.random.get_state()
    found = {"torch": _digest(torch.get_rng_state().numpy().tobytes()),
             "numpy": _digest(words.tobytes() + repr(rest).encode()),
             "random": str(hash(random.getstate()))}
    if torch.cuda.is_initialized():
        found["cuda"] = _digest(torch.cuda.get_rng_state().numpy().tobytes())
    return found


def draws_since(before: dict[str, str]) -> Draws:
    """The generators that have moved since then."""
    now = states()
    return Draws(before, frozenset(name for name in now if now[name] != before.get(name)))


def _digest(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
