"""Several ranks as one worker, for a script that cannot run on one: what they did together."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..record import Iteration, Record, Update


def together(ranks: Sequence[Record]) -> Record:
    """The ranks' record as one worker's: each batch has the examples of all, each update their passes, and a pass its
    share of the mean loss."""
    optimizers = [replace(each[0], updates=[*map(_update, zip(*(one.updates for one in each)))])
                  for each in zip(*(record.optimizers for record in ranks))]
    iterations = [*map(_iteration, zip(*(record.iterations for record in ranks)))]
    return replace(ranks[0], iterations=iterations, optimizers=optimizers)


def _update(ranks: tuple[Update, ...]) -> Update:
    passes = [replace(one, loss=one.loss / len(ranks)) for each in zip(*(update.passes for update in ranks))
              for one in each]
    return replace(ranks[0], passes=passes, square=sum(update.square for update in ranks), own=None)


def _iteration(ranks: tuple[Iteration, ...]) -> Iteration:
    batches = [replace(each[0], ids=sum((one.ids for one in each), ()),
                       contents=sum((one.contents for one in each), ()), examples=sum(one.examples for one in each))
               for each in zip(*(one.batches for one in ranks))]
    return replace(ranks[0], batches=batches, rest=[sum(each, ()) for each in zip(*(one.rest for one in ranks))])
