"""Parameters that are divided among the ranks, and their gradients, put together from what each rank has of them."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..record import Record

SAMPLES = ("gradient", "before_clips", "parameters", "after")


def join(records: Sequence[Record]) -> None:
    """Give each rank what others have of its samples, where parameters are divided: first those ranks that make a copy
    of the model with it, as of several copies each is the n-th to have its part. NaN stays where none has a number."""
    if not any(record.sharded for record in records):
        return
    for optimizers in zip(*(record.optimizers for record in records)):
        for updates in zip(*(one.updates for one in optimizers)):
            for name in SAMPLES:
                parts = [getattr(update, name) for update in updates]
                if len({len(part) for part in parts}) > 1:
                    continue
                holes = [np.isnan(part).tobytes() for part in parts]
                copy = [holes[:at].count(one) for at, one in enumerate(holes)]
                for at, update in enumerate(updates):
                    if name == "parameters":
                        update.own = ~np.isnan(parts[at])
                    whole = parts[at]
                    for other in sorted(range(len(parts)), key=lambda other: copy[other] != copy[at]):
                        whole = np.where(np.isnan(whole), parts[other], whole)
                    setattr(update, name, whole)


def is_joined(records: Sequence[Record]) -> bool:
    """Whether the gradient of every update is known, before and after the reduction."""
    every = [update for record in records for one in record.optimizers for update in one.updates]
    return all(not np.isnan(update.gradient).any() and all(
        one.gradient.any() and not np.isnan(one.gradient).any() for one in update.passes)
               for update in every)
