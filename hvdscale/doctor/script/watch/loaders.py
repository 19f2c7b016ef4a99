"""DataLoader and its samplers: which examples each batch has, and whether they were trained on or evaluated."""
from __future__ import annotations

import hashlib
from collections import deque

import torch
from torch.utils.data import DistributedSampler, RandomSampler, Subset, WeightedRandomSampler, dataloader
from torch.utils.data._utils import fetch

from ..record import Batch, Draws, Iteration, Sampling
from .generators import draws_since, states
from .modules import digest_buffers
from .watcher import Watcher, replace

AHEAD = 2                       # batches that a wrapper around a loader may fetch before it passes one on
LARGEST = 1 << 26               # bytes of a batch whose contents are digested


class Loaders:
    """The loaders' part of the record: ``taken`` says which batches a backward pass has used."""

    def __init__(self, watcher: Watcher):
        self.watcher, self.evaluating = watcher, False
        self.after_fetch = states()
        self._fetched: Draws | None = None
        self._waiting: dict[int, deque[Batch]] = {}          # by id of its iteration: batches without a backward pass
        # that returned a batch since the last backward pass, by whether the model was in evaluation mode
        self._since: dict[bool, list[Iteration]] = {False: [], True: []}

    def install(self) -> None:
        """Watch every loader of this process."""
        iterator = dataloader._BaseDataLoaderIter
        replace(iterator, "_reset", self._begin_first)
        replace(iterator, "_next_index", self._note_index)
        replace(iterator, "__next__", self._note_batch)
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            replace(fetcher, "fetch", self._note_draws)
        replace(torch.nn.Module, "train", self._note_mode)

    def taken(self) -> list[Batch]:
        """The batches of the backward pass that begins: one of each loader that is being trained from."""
        found = self._take(self._since[False]) or self._take(self._since[True])
        self._since = {False: [], True: []}
        return found

    def _take(self, since: list[Iteration]) -> list[Batch]:
        found = []
        for iteration in {id(one): one for one in since}.values():
            waiting = self._waiting.get(id(iteration))
            few = sum(one is iteration for one in since) <= AHEAD
            if waiting and (iteration.trained or few and not iteration.ended):
                iteration.trained = True
                found.append(waiting.popleft())
        return found

    def _begin_first(self, original):
        def reset(iterator, *args, **options):
            self._begin(iterator)
            return original(iterator, *args, **options)
        return reset

    def _begin(self, iterator) -> Iteration:
        loader_workers = iterator._num_workers > 0
        iteration = Iteration(_bottom(iterator._dataset), iterator._dataset_kind == dataloader._DatasetKind.Iterable,
                              _sampling(iterator), self.watcher.updates,
                              int(iterator._base_seed) if loader_workers else None)
        iterator._watched, iterator._indices = iteration, deque()
        self.watcher.record.iterations.append(iteration)
        return iteration

    def _note_index(self, original):
        def next_index(iterator):
            if not hasattr(iterator, "_watched"):
                self._begin(iterator)
            index = original(iterator)
            iterator._indices.append(index)
            return index
        return next_index

    def _note_batch(self, original):
        def following(iterator):
            iteration = getattr(iterator, "_watched", None) or self._begin(iterator)
            if iteration.trained and self.watcher.has_enough and iteration.updates < self.watcher.wanted:
                iteration.cut = True
                raise StopIteration
            self._fetched = None
            try:
                data = original(iterator)
            except StopIteration:
                iteration.ended = True
                self.watcher.save()
                raise
            self._add(iteration, iterator, data)
            return data
        return following

    def _add(self, iteration: Iteration, iterator, data) -> None:
        index = iterator._indices.popleft() if iterator._indices else None
        given = index if isinstance(index, (list, tuple)) else [index]
        contents = _contents(data)
        ids = () if iteration.iterable else tuple(_resolve(iterator._dataset, one) for one in given)
        self.watcher.record.fetched += 1
        batch = Batch(ids, contents if len(contents) == len(ids) or not ids else (), len(ids) or len(contents),
                      self.watcher.record.fetched, self._fetched)
        iteration.batches.append(batch)
        if self.watcher.record.buffers is None:
            self.watcher.record.buffers = digest_buffers()
        if torch.is_grad_enabled():
            self._waiting.setdefault(id(iteration), deque()).append(batch)
            self._since[self.evaluating and not iteration.trained].append(iteration)
        self.after_fetch = states()
        self.watcher.save(soon=True)

    def _note_draws(self, original):
        def fetch_batch(fetcher, index):
            before = states()
            data = original(fetcher, index)
            drawn = draws_since(before)
            if self.watcher.here:
                self._fetched = drawn
            elif drawn.moved:
                (self.watcher.folder / f"rank{self.watcher.record.rank}.drew").touch()
            return data
        return fetch_batch

    def _note_mode(self, original):
        def train(module, mode=True):
            self.evaluating = not mode
            return original(module, mode)
        return train


def _bottom(dataset) -> tuple[str, int]:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    try:
        return type(dataset).__name__, len(dataset)
    except (TypeError, NotImplementedError):
        return type(dataset).__name__, -1


def _resolve(dataset, index):
    """The index in the data set below all subsets."""
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    try:
        return int(index)
    except (TypeError, ValueError):
        return repr(index)


def _sampling(iterator) -> Sampling:
    batches = iterator._index_sampler
    sampler = getattr(batches, "sampler", batches)
    try:
        length = len(sampler)
    except (TypeError, NotImplementedError):
        length = None
    distributed = isinstance(sampler, DistributedSampler)
    spare = sampler.total_size - len(sampler.dataset) if distributed else 0
    shuffle = bool(sampler.shuffle) if distributed else isinstance(sampler, RandomSampler)
    replacement = isinstance(sampler, WeightedRandomSampler) or bool(getattr(sampler, "replacement", False))
    return Sampling(type(sampler).__name__, length, sampler.num_replicas if distributed else None, shuffle, replacement,
                    max(spare, 0), max(-spare, 0), bool(getattr(batches, "drop_last", False)))


def _contents(data) -> tuple[str, ...]:
    """A digest of each example of a batch made of tensors with one row an example; empty for another batch."""
    tensors = list(_tensors(data))
    sizes = {len(values) if values.dim() else 0 for values in tensors}
    if len(sizes) != 1 or 0 in sizes or sum(values.nbytes for values in tensors) > LARGEST:
        return ()
    rows = [values.detach().cpu().contiguous().reshape(len(values), -1).view(torch.uint8).numpy() for values in tensors]
    return tuple(hashlib.blake2b(b"".join(row.tobytes() for row in example), digest_size=8).hexdigest()
                 for example in zip(*rows))


def _tensors(data):
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from _tensors(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _tensors(value)
