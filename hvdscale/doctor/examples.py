"""The check of the data: whether an example is the same in any batch."""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.splits import MapSplit, tensors_of
from ..formatting.numbers import counted
from ..plan.shards import Visits
from ..training.job import Job
from .finding import JOB, Finding

SOME = 24                   # examples read of each split


def examples(job: Job) -> Finding:
    """Whether an example is the same when read again, alone or in any batch, and take returns one per visit."""
    name, seed, read, change = "examples", job.plan.seed, [], "the same in every epoch"
    splits = {"train": job.data.train, **{split: data for split, data in job.data.evaluated(
        job.plan.train_eval_examples).items() if split != "train"}}
    for split, data in splits.items():
        if not len(data):
            continue
        visits = _spread(len(data), seed)
        try:
            wrong = _count_wrong(data, visits) or _differs(data, visits)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}", None, "unreadable"
        if wrong:
            differs, by, cause = wrong
            return JOB.finding(name, "differ", read=len(visits.indices), split=split, differs=differs, by=by, limit=0.0,
                               cause=cause)
        read.append(f"{len(visits.indices)} of {split}")
        if split == "train":
            later = visits._replace(epochs=visits.epochs + 1)
            again = _compare(dict(tensors_of(data.take(visits))), dict(tensors_of(data.take(later))))
            change = "training examples change from epoch to epoch" if again else change
    shared = ", ".join(filter(None, (_shared(job, split) for split in ("val", "test"))))
    return JOB.finding(name, "leaked" if shared else "same", read=", ".join(read), change=change, shared=shared)


def _shared(job: Job, split: str) -> str:
    """How a split's examples are those of the training split, all of them or its first or last ones; else empty."""
    data, train = getattr(job.data, split), job.data.evaluated(len(job.data.train))["train"]
    if not len(data):
        return ""
    if all(isinstance(one, MapSplit) for one in (data, job.data.train)) and data.dataset is job.data.train.dataset:
        return f"{split} and train read the same data set"
    visits = _spread(len(data), job.plan.seed)
    own = dict(tensors_of(data.take(visits)))
    if not any(values.ndim and bool((values != values[:1]).any()) for values in own.values()):
        return ""                   # examples that are all alike
    for first in {0, len(train) - len(data)} if len(data) <= len(train) else ():
        there = dict(tensors_of(train.take(visits._replace(indices=visits.indices + first))))
        if own.keys() == there.keys() and all(torch.equal(values, there[name]) for name, values in own.items()):
            return (f"the {counted(len(visits.indices), 'example')} of {split} that were read are examples of train, "
                    f"{'from its end' if first else 'at the same places'}")
    return ""


def _spread(n: int, seed: int) -> Visits:
    """Visits to up to SOME examples of n, from the first to the last."""
    indices = np.unique(np.linspace(0, n - 1, min(n, SOME)).astype(np.int64))
    return Visits(indices, np.zeros_like(indices), seed)


def _count_wrong(data, visits: Visits) -> tuple | None:
    """The fault where a batch has more or fewer rows than visits, by its own length or by all its tensors'."""
    whole = {name: len(values) for name, values in tensors_of(data.take(visits)) if values.ndim}
    for n in (min(len(visits.indices), k) for k in (5, 3, 1)):
        batch = data.take(select(visits, slice(n)))
        lengths = {name: len(values) for name, values in tensors_of(batch) if values.ndim}
        own = len(batch) if hasattr(batch, "__len__") and not isinstance(batch, (tuple, list, dict)) else None
        rows = own if own is not None else min(lengths.values(), default=n)
        grows = any(whole.get(name) != length for name, length in lengths.items())      # others, as of time: no rows
        if rows != n and (own is not None or n not in lengths.values() and grows):
            return f"take returns {rows} examples for {counted(n, 'visit')}", None, "other_count"
    return None


def _differs(data, visits: Visits) -> tuple | None:
    """The first example that differs when read again, in another order, or alone."""
    whole, n = dict(tensors_of(data.take(visits))), len(visits.indices)
    cases = [("twice", np.arange(n)), ("in another order", np.arange(n)[::-1].copy())]
    for how, rows in cases + [("alone", np.array([row])) for row in range(n)]:
        first, other = whole, dict(tensors_of(data.take(select(visits, rows))))
        if how != "twice":              # of what has a row for each example
            first = {name: values[rows] for name, values in whole.items() if values.ndim and len(values) == n}
            other = {name: values for name, values in other.items() if values.ndim and len(values) == len(rows)}
        if found := _compare(first, other):
            row, name, by = found
            which = f"example {visits.indices[rows[row]]}" if row < len(rows) else "an example"
            return (f"{name} of {which} differs when read {how}", by,
                    "not_deterministic" if how == "twice" else "by_batch")
    return None


def select(visits: Visits, which) -> Visits:
    """The visits with these indices, a slice or an array."""
    return visits._replace(indices=visits.indices[which], epochs=visits.epochs[which])


def _compare(values: dict[str, Tensor], others: dict[str, Tensor]) -> tuple[int, str, float] | None:
    """The first row that differs, its tensor's name, and the largest difference; other shapes are skipped."""
    for name, a in values.items():
        b = others.get(name)
        if b is None or a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            continue
        apart = (a != b) & ~(a.isnan() & b.isnan())       # NaN equals NaN here
        if apart.any():
            row = int(apart.nonzero()[0, 0]) if a.ndim else 0
            return row, name, (a.double() - b.double()).abs().nan_to_num(float("inf")).max().item()
    return None
