"""Loaders and their samplers: which examples each batch has, and whether they were trained on or evaluated."""

import contextlib
import os
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DistributedSampler, RandomSampler, Subset, WeightedRandomSampler, dataloader

from ....watch.generators import digest_of, moved_since, snapshot
from ....watch.lines import line_of_call
from ....watch.listener import Listener
from ....watch.loaders import rest_of
from ....watch.runner import file_of
from ..record import MOST_INDICES, GeneratorUse, Iteration, LoadedBatch, Sampling
from .session import Session
from .tensors import digest, digest_statistics, digest_untrained, outermost_modules

MOST_HELD = 4096                # examples of a data set that are all read in the end
LARGEST = 1 << 26               # bytes of a batch whose contents are digested


class Batches(Listener):
    """The loaders' part of the record."""

    def __init__(self, session: Session):
        self.session, self.evaluating = session, False
        self._read: list[str] = []                              # digests of examples that were read last
        self._drawn: GeneratorUse | None = None                 # in reading them
        self._evaluated: weakref.WeakSet = weakref.WeakSet()    # models that were called without gradients
        self._before = snapshot()
        self._noted: frozenset[str] = frozenset()               # generators that this loader worker has drawn from
        self._data: weakref.ref | None = None                   # the data set that was trained on first
        self._iterators: weakref.WeakSet = weakref.WeakSet()
        # that returned a batch since the last backward pass, by whether the model was in evaluation mode; each with the
        # id of what its loader samples by
        self._since: dict[bool, list[tuple[int, Iteration]]] = {False: [], True: []}

    def used(self) -> None:
        """A backward pass begins: loaders that have returned a batch since the last one are trained from; of several
        iterations over one loader the last, as a look at its first batch is none of training."""
        found: list[Iteration] = []
        for last in map(dict, self._since.values()):
            found = found or [one for one in last.values() if one.trained or not one.ended or len(one.batches) == 1]
        for one in found:
            one.trained = True
        for _, one in self._since[False] if not found else ():
            one.listed = True
        self._since = {False: [], True: []}

    def fetched(self) -> dict[int, int]:
        """How many batches the last iteration over each data set that is trained from had returned, by its place."""
        last = {(one.data, one.subset, one.sampling.name): (at, one)
                for at, one in enumerate(self.session.record.iterations) if one.trained}
        newest = max((at for at, _ in last.values()), default=0)        # an ended one that another followed has no more
        return {at: len(one.batches) for at, one in last.values() if at == newest or not one.ended}

    def iteration_begins(self, iterator):
        dataset, subset, record = iterator._dataset, None, self.session.record
        if isinstance(dataset, Subset):                     # by its indices in the data set below all
            resolved = (_resolve(dataset.dataset, index) for index in list(dataset.indices[:MOST_INDICES]))
            indices = tuple(one for one in resolved if isinstance(one, int))
            if indices not in record.subsets:
                record.subsets.append(indices)
            subset = record.subsets.index(indices)
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        size, line, name = _length(dataset), line_of_call(), type(dataset).__name__
        data = name, -1 if size is None else size
        beside = {one._iteration.data for one in self._iterators
                  if not one._iteration.ended and one._base is not dataset}
        if data in beside and torch.is_grad_enabled() and not self.evaluating:      # two data sets, read by turns
            data = f"{name} 2", data[1]
        iterator._base = dataset
        self._iterators.add(iterator)
        iterator._iteration = iteration = Iteration(
            data,
            iterator._dataset_kind == dataloader._DatasetKind.Iterable, _sampling(iterator), record.made,
            int(iterator._base_seed) if iterator._num_workers > 0 else None, subset, line=line,
            made=getattr(iterator._index_sampler, "_line", line))
        self._evaluated.clear()
        record.iterations.append(iteration)
        if self._data is None and not iteration.iterable:
            with contextlib.suppress(TypeError):                # of a list
                self._data = weakref.ref(iterator._dataset)

    def hold(self) -> None:
        """Read the examples of the first data set, once the script has ended: ranks may have prepared their own."""
        dataset, before = self._data and self._data(), snapshot()
        if 0 < (_length(dataset) or 0) <= MOST_HELD:
            with contextlib.suppress(Exception):
                held = digests_of([dataset[at] for at in range(len(dataset))])
                self.session.record.held = [] if moved_since(before) else held

    def ends_early(self, iterator):
        iteration, made, wanted = iterator._iteration, self.session.record.made, self.session.wanted
        if not iteration.trained or not iteration.updates < wanted <= made:
            return False
        if iteration.cut is None:
            iteration.cut, iteration.rest = made, [_ids_of(iterator, index) for index in rest_of(iterator)]
        return True

    def iteration_ends(self, iterator):
        iteration = iterator._iteration
        iteration.ended = True
        if not iteration.trained and self.evaluating:
            iteration.buffers = digest_statistics([*self._evaluated] or outermost_modules())
        if not iteration.trained and not self.session.record.sharded:
            iteration.models = tuple(sorted(digest(one.parameters()) for one in self._evaluated))
        self.session.save()

    def reading(self, begins):
        if begins:
            self._before = snapshot()
            return
        moved = moved_since(self._before)
        if os.getpid() == self.session.process:         # and no loader worker
            self._drawn = GeneratorUse(self._before[0], moved)
        elif moved - self._noted:
            with open(file_of(self.session.folder, self.session.record.rank, "drew"), "a") as file:
                file.writelines(f"{name} {self._before[0].get(name)}\n" for name in moved - self._noted)
            self._noted |= moved

    def examples(self, examples):
        self._read = digests_of(examples)

    def batch(self, iterator, index, data):
        iteration, record = iterator._iteration, self.session.record
        ids = () if iteration.iterable else _ids_of(iterator, index)
        contents = tuple(self._read or _digests_of_rows(data))
        known = contents if len(contents) == len(ids) or not ids else ()
        record.fetched += 1
        iteration.batches.append(LoadedBatch(ids, known, len(ids) or len(contents), record.fetched, self._drawn))
        self._read, self._drawn = [], None
        length = _length(iterator)
        iteration.whole = not iteration.iterable and length is not None and len(iteration.batches) >= length
        if record.untrained is None:
            record.untrained = digest_untrained()
        if torch.is_grad_enabled():
            self._since[self.evaluating and not iteration.trained].append((id(iterator._index_sampler), iteration))
        self.session.save(soon=True)

    def inference(self, module):
        self._evaluated.add(module)
        every = self.session.record.iterations
        for one in every[-1:] if module.training and digest_statistics([module]) else ():       # as update_bn calls it
            one.listed |= any((each.data, each.subset) == (one.data, one.subset) for each in every if each.trained)

    def mode(self, training):
        self.evaluating = not training


def _length(value: Any) -> int | None:
    """The length of a loader, sampler or data set; None where it has none."""
    with contextlib.suppress(TypeError, NotImplementedError):
        return len(value)
    return None


def _ids_of(iterator: Any, index: Any) -> tuple[int | str, ...]:
    return tuple(_resolve(iterator._dataset, one) for one in (index if isinstance(index, (list, tuple)) else [index]))


def _resolve(dataset: Any, index: Any) -> int | str:
    """The index in the data set below all subsets."""
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    with contextlib.suppress(TypeError, ValueError):
        return int(index)
    return repr(index)


def _sampling(iterator: Any) -> Sampling:
    batches = iterator._index_sampler
    sampler = getattr(batches, "sampler", batches)
    inner = getattr(getattr(batches, "batch_sampler", None), "sampler", sampler)        # of accelerate's shards
    distributed = isinstance(sampler, DistributedSampler)
    epoch, line = getattr(inner, "_watched", (None, ""))
    spare = sampler.total_size - len(sampler.dataset) if distributed else 0
    shuffle = bool(sampler.shuffle) if distributed else isinstance(sampler, RandomSampler) or None
    replacement = isinstance(sampler, WeightedRandomSampler) or bool(getattr(sampler, "replacement", False))
    return Sampling(type(sampler).__name__, _length(sampler), getattr(inner, "num_replicas", None), shuffle,
                    replacement, max(spare, 0), max(-spare, 0), bool(getattr(batches, "drop_last", False)),
                    callable(getattr(sampler, "set_epoch", None)), epoch, line)


def digests_of(examples: list) -> list[str]:
    """A digest of each example as the data set gave it, part by part; empty where some part cannot be digested."""
    found = []
    for example in examples:
        whole = example if isinstance(example, (dict, list, tuple)) else [example]
        parts = [whole[key] for key in sorted(whole, key=repr)] if isinstance(whole, dict) else whole
        contents = [[_content_of(leaf) for leaf in tree_leaves(part)] for part in parts]
        if not contents or any(None in each for each in contents):
            return []
        found.append(".".join(digest_of(b" ".join(each)) for each in contents))
    return found


def _content_of(value: Any) -> bytes | None:
    """What is digested of a tensor, array, image, number or text; None of others."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
        value = value.numpy() if not value.is_sparse else value.to_dense().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return None if value.nbytes > LARGEST else f"{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, (int, float, str, bytes, bool, type(None), np.generic)):
        return repr(value).encode()
    return value.tobytes() if hasattr(value, "tobytes") and hasattr(value, "size") else None


def _digests_of_rows(data: Any) -> list[str]:
    """A digest of each example of a batch made of tensors with one row an example; empty for another batch."""
    tensors = [values.detach().cpu() for values in tree_leaves(data) if isinstance(values, torch.Tensor)]
    sizes = {len(values) if values.dim() else 0 for values in tensors}
    fit = len(sizes) == 1 and 0 not in sizes and sum(values.nbytes for values in tensors) <= LARGEST
    return digests_of(list(zip(*tensors))) if fit else []
