"""DataLoader: what its sampler gives, what is read for it, and what it returns."""

import os
from collections import deque
from itertools import islice

from torch.utils.data import DistributedSampler, dataloader
from torch.utils.data._utils import fetch

from .listener import Watch

MOST = 100_000          # batches of the rest of an epoch that are looked at


def install(watch: Watch) -> None:
    patches, process = watch.patches, os.getpid()

    def begin(iterator, again=False):
        if again or not hasattr(iterator, "_watched"):
            iterator._watched = deque()             # what the sampler gave for batches that were not returned yet
            watch.tell("iteration_begins", iterator)

    def next_index(original, iterator):
        begin(iterator)
        iterator._watched.append(original(iterator))
        return iterator._watched[-1]

    def next_batch(original, iterator):
        begin(iterator)
        if any(listener.ends_early(iterator) for listener in watch.listeners):
            raise StopIteration
        watch.tell("batch_wanted", iterator)
        try:
            data = original(iterator)
        except StopIteration:
            watch.tell("iteration_ends", iterator)
            raise
        watch.tell("batch", iterator, iterator._watched.popleft() if iterator._watched else None, data)
        return data

    def fetch_batch(original, fetcher, possibly_batched_index):
        collate, here = fetcher.collate_fn, os.getpid() == process

        def noting(examples):
            watch.tell("examples", examples)
            return collate(examples)
        watch.tell("reading", True)
        if here and fetcher.auto_collation:
            fetcher.collate_fn = noting
        try:
            return original(fetcher, possibly_batched_index)
        finally:
            fetcher.collate_fn = collate
            watch.tell("reading", False)

    def noting_line(_, loader, *__, **___):
        if hasattr(loader._index_sampler, "__dict__"):          # no list of batches
            loader._index_sampler._line = watch.line_of_call()
    patches.before(DistributedSampler, "set_epoch", lambda sampler, epoch, *_, **__: setattr(
        sampler, "_watched", (epoch, watch.line_of_call())))
    patches.after(dataloader.DataLoader, "__init__", noting_line)
    iterator = dataloader._BaseDataLoaderIter
    patches.before(iterator, "_reset", lambda iterator, *_, **__: begin(iterator, again=True))
    patches.around(iterator, "_next_index", next_index)
    patches.around(iterator, "__next__", next_batch)
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher) if watch.details else ():
        patches.around(fetcher, "fetch", fetch_batch)


def rest_of(iterator) -> list:
    """What the sampler gives for the batches of this epoch not returned yet, which uses it up; [] for iterable data."""
    iterable = iterator._dataset_kind == dataloader._DatasetKind.Iterable
    return [] if iterable else [*iterator._watched, *islice(iterator._sampler_iter, MOST)]
