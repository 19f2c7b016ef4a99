"""What one rank's process saw of a script: plain records, written to a file for the process that compares them."""
from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from ...watch.runner import record_of

MOST_INDICES = 50_000           # of a subset that are kept
RUNNING, STOPPED, ENDED, FAILED = "running", "stopped", "ended", "failed"


@dataclass(frozen=True)
class GeneratorUse:
    """Random generators around a piece of work: a digest of each global one's state before, and those that moved;
    ``own`` among them stands for all that the script has made."""

    before: dict[str, str]
    moved: frozenset[str]


NOTHING = GeneratorUse({}, frozenset())


@dataclass
class LoadedBatch:
    """A batch that a loader returned.

    ids       of its examples: their indices in the underlying data set; empty for an iterable data set
    contents  a digest of each example, with a dot between those of its parts; empty where it cannot be told apart
    examples  how many
    number    of batches of all loaders that this process had fetched with it
    draws     of reading it in this process; None: loader workers read it
    """

    ids: tuple[int | str, ...]
    contents: tuple[str, ...]
    examples: int
    number: int
    draws: GeneratorUse | None = None


@dataclass
class Sampling:
    """The sampler of a loader; None where it has no such attribute.

    settable  it has a method set_epoch;  epoch, line  what that of a DistributedSampler was last given, and where
    """

    name: str
    length: int | None
    replicas: int | None
    shuffle: bool | None
    replacement: bool
    padded: int             # examples that a DistributedSampler repeats an epoch
    left_out: int           # examples that it drops an epoch
    drops_last: bool        # the loader drops an incomplete batch
    settable: bool = False
    epoch: int | None = None
    line: str = ""


@dataclass
class Iteration:
    """One pass over a loader.

    data      the underlying data set's class and length (-1: unknown)
    subset    which of the record's ``subsets`` of it the loader has; None: all of it
    updates   how many updates had been made when it began
    rest      ids of what its sampler had left when the watcher ended it, batch by batch
    trained   whether a backward pass followed one of its batches
    ended     whether it was read to its end;  whole: it has returned all its batches
    cut       after how many updates the watcher ended it; None: it did not
    seed      that loader workers are seeded from; None: no loader workers
    buffers   a digest of batch-norm's statistics in the process when it ended; empty unless it was evaluated
    models    of the parameters of each model that was evaluated in it
    line      of the loop over it
    listed    whether it was read whole before a backward pass that no other loader had a batch for
    """

    data: tuple[str, int]
    iterable: bool
    sampling: Sampling
    updates: int
    seed: int | None
    subset: int | None = None
    batches: list[LoadedBatch] = field(default_factory=list)
    rest: list[tuple[int | str, ...]] = field(default_factory=list)
    trained: bool = False
    ended: bool = False
    cut: int | None = None
    whole: bool = False
    buffers: str = ""
    models: tuple[str, ...] = ()
    line: str = ""
    listed: bool = False


@dataclass
class LossCall:
    """One call of a loss function of torch, seen from the backward pass.

    count           of targets it is taken over (weighted, if the classes are)
    total           derivative of what was differentiated by this loss as a mean
    lowest, highest weight of a single target in what was differentiated
    line            of the call
    values, weights of each target, where the call gives them one by one; else their sum, and one weight of all
    """

    name: str
    count: float
    total: float
    lowest: float
    highest: float
    line: str = ""
    values: np.ndarray = field(default_factory=lambda: np.zeros(1))
    weights: np.ndarray = field(default_factory=lambda: np.zeros(1))


@dataclass
class BackwardPass:
    """One backward pass: local numbers, before any reduction over ranks.

    loss      the value that was differentiated
    fetched   batches that each iteration over a loader had returned by then, those of training
    prepared  between the batch, or the pass before, and the first call of a module
    line      of the call
    """

    loss: float
    gradient: np.ndarray
    losses: list[LossCall]
    fetched: dict[int, int]
    draws: GeneratorUse     # between the first call of a module and the backward pass
    rough: bool             # computed in less than 32 bits
    line: str
    prepared: GeneratorUse = NOTHING


@dataclass
class Clip:
    """A call that clips gradients: their norm, the allowed one, and the passes of the update that came before it.

    early  Horovod had not combined the gradients yet;  scale  what a GradScaler had multiplied them by
    """

    norm: float
    limit: float
    passes: int
    line: str
    early: bool = False
    scale: float = 1.0


@dataclass
class Update:
    """One step of an optimizer. Samples are numbers at fixed places of its parameters.

    gradient   as the step took it;  before_clips: without what clipped it after the last pass
    after      the parameters after the step
    digest     of all parameters before the step;  digest_after: after it
    own        which numbers this rank has, where ranks have parts of the parameters (see compare/shards.py)
    positions  of the learning-rate schedules
    """

    gradient: np.ndarray
    before_clips: np.ndarray
    parameters: np.ndarray
    digest: str
    rates: tuple[float, ...]
    positions: tuple[int, ...]
    passes: list[BackwardPass]
    clips: list[Clip]
    line: str
    digest_after: str = ""
    after: np.ndarray = field(default_factory=lambda: np.empty(0))
    own: np.ndarray | None = None


@dataclass
class OptimizerUpdates:
    """An optimizer's updates.

    name     its class
    flat     it has other tensors than the model, such as a part of all parameters in a row: samples are the model's
    sampled  the name of each parameter and how many numbers of it are in the samples, in their order
    """

    name: str
    sampled: list[tuple[str, int]]
    updates: list[Update] = field(default_factory=list)
    flat: bool = False


@dataclass
class Record:
    """All that one rank's process saw."""

    rank: int
    workers: int
    state: str = RUNNING
    iterations: list[Iteration] = field(default_factory=list)
    subsets: list[tuple[int, ...]] = field(default_factory=list)    # indices in the underlying data set
    optimizers: list[OptimizerUpdates] = field(default_factory=list)    # in the order of their first steps
    batch_norms: dict[int, int] = field(default_factory=dict)       # examples -> calls, in training
    untrained: dict[str, str] | None = None     # digests of buffers and frozen parameters, before the first batch
    untaken: list[str] = field(default_factory=list)    # parameters with a gradient that no optimizer has
    broadcasts_buffers: bool = False                                # before each forward pass of a wrapper
    fetched: int = 0                                                # batches of all loaders
    combined: list[tuple[int, str]] = field(default_factory=list)   # where ranks' values were: ``fetched``, the call
    drew_in_workers: frozenset[str] = frozenset()                   # generators of loader workers and their states
    sharded: str = ""                                               # what divides parameters among the ranks
    remarks: list[str] = field(default_factory=list)                # of what a watcher cannot follow
    instead: list[str] = field(default_factory=list)                # of what the script had in place of a GPU
    written: list[str] = field(default_factory=list)                # files outside of the copy
    error: str = ""                                                 # traceback
    held: list[str] = field(default_factory=list)       # contents of the data set that is trained on, if it is small
    group: int = 0                                      # ranks of the smallest group of a wrapper; 0: none wraps
    untrained_later: dict[str, str] | None = None       # as untrained, after the updates to watch

    @property
    def updates(self) -> list[Update]:
        """The updates of the optimizer that stepped first."""
        return self.optimizers[0].updates if self.optimizers else []

    @property
    def made(self) -> int:
        """Updates so far: the most that any optimizer has made."""
        return max((len(one.updates) for one in self.optimizers), default=0)

    @property
    def was_cut(self) -> bool:
        """Whether the watcher ended an iteration over a loader."""
        return any(one.cut is not None for one in self.iterations)

    def save(self, folder: Path) -> None:
        path = record_of(folder, self.rank)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self, default=_as_json), encoding="utf-8")
        part.replace(path)                      # never seen half written


def load(folder: Path, rank: int, workers: int, kind: type[Record] = Record) -> Any:
    """The record of a rank, of this kind, as it was last saved; an empty one where it saved none."""
    try:
        return _from_json(kind, json.loads(record_of(folder, rank).read_bytes()))
    except FileNotFoundError:
        return kind(rank, workers)


def _as_json(value: Any) -> Any:
    """What json has no form for: arrays keep their bits."""
    if isinstance(value, np.ndarray):
        return b64encode(value.tobytes()).decode()
    return sorted(value) if isinstance(value, frozenset) else vars(value)


def _from_json(kind: Any, value: Any) -> Any:
    """The value of that type: one of the records, or of what their fields are made of."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return kind(**{name: _from_json(hint, value[name]) for name, hint in _hints(kind).items()})
    if kind is np.ndarray:
        return np.frombuffer(b64decode(value)).copy()
    if origin in (list, frozenset) or origin is tuple and inner[-1] is ...:
        return origin(_from_json(inner[0], one) for one in value)
    if origin is tuple:
        return tuple(map(_from_json, inner, value))
    if origin is dict:
        return {inner[0](key): _from_json(inner[1], one) for key, one in value.items()}
    if origin is UnionType and value is not None:
        return _from_json(inner[0], value)
    return value


_hints = cache(get_type_hints)
