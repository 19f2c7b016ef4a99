"""A digest of a split: how many examples it has, and what the first and the last are, read as an evaluation would.

    digest_split(data.train)        {"examples": 60000, "first": "5f1d0c9a7be2", "last": "0c4e1a2b9d37"}

An example that cannot be read, that differs when it is read again, or that holds objects of unknown types is None:
unknown. Of numbers that are not whole a weighted sum counts, to three digits: processors differ in the last bits.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..errors import StoppedError
from ..plan.shards import Visits
from ..system.source import digest_of
from .generators import OwnGenerators

GOLDEN = 0.6180339887498949
PLAIN = (bool, int, str, bytes, type(None))


def digest_split(split) -> dict:
    """The number of examples, and the digests of the first and the last; None: unknown."""
    plain = split.plain() if hasattr(split, "plain") else split
    ends = {"first": 0, "last": len(split) - 1} if len(split) else {}
    return {"examples": len(split), **{name: _digest_example(plain, at) for name, at in ends.items()}}


def _digest_example(split, at: int) -> str | None:
    try:
        with OwnGenerators():
            once, again = (digest_of(outline(split.take(Visits(np.array([at]), np.array([0]), 0)))) for _ in range(2))
        return once if once == again else None
    except StoppedError:
        raise
    except Exception:                       # the data set is the user's; the run says what is wrong if it matters
        return None


def outline(value):
    """Plain values that say what an example is; raises TypeError for objects of unknown types."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    if isinstance(value, (np.ndarray, np.generic, float, complex)):
        return _outline_array(np.asarray(value))
    if isinstance(value, Mapping):
        return [(outline(key), outline(part)) for key, part in value.items()]
    if isinstance(value, (tuple, list)):
        return [*map(outline, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, outline(getattr(value, field.name))) for field in dataclasses.fields(value)]
    raise TypeError(f"{type(value).__name__} is of no known type")


def _outline_array(array: np.ndarray):
    if array.dtype.kind == "O":
        return [array.shape, *map(outline, array.ravel().tolist())]
    if array.dtype.kind not in "fc":
        return array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()
    flat = np.ravel(array).astype(complex if array.dtype.kind == "c" else float).view(float)
    weights = 1 + np.modf(np.arange(1, len(flat) + 1) * GOLDEN)[0]          # so that the order counts
    with np.errstate(all="ignore"):
        norm = np.linalg.norm(flat)
        return array.dtype.kind, array.shape, f"{norm:.3g}", round(float(flat @ weights / norm), 3) + 0.0
