"""Parameters that are divided among the ranks, and their gradients, put together from what each rank has of them."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..record import Record

SAMPLES = ("gradient", "before_clips", "parameters")


def join(records: Sequence[Record]) -> None:
    """Give the samples of all ranks to each, where their parameters are divided; NaN stays where none has a number."""
    if not any(record.sharded for record in records):
        return
    for optimizers in zip(*(record.optimizers for record in records)):
        for updates in zip(*(one.updates for one in optimizers)):
            for name in SAMPLES:
                parts = [getattr(update, name) for update in updates]
                if len({len(part) for part in parts}) == 1:
                    whole = parts[0].copy()
                    for part in parts[1:]:
                        whole = np.where(np.isnan(whole), part, whole)
                    for update in updates:
                        setattr(update, name, whole)


def is_joined(records: Sequence[Record]) -> bool:
    """Whether the gradient of every update is known, before and after the reduction."""
    every = [update for record in records for one in record.optimizers for update in one.updates]
    return all(not np.isnan(update.gradient).any() and all(
        one.gradient.any() and not np.isnan(one.gradient).any() for one in update.passes)
               for update in every)
