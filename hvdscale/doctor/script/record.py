"""What one rank's process saw of a script: plain records, written to a file for the process that compares them."""

import contextlib
import json
import os
import stat
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np

from ...watch.runner import RECORD, RUNNING, file_of

MOST_INDICES = 50_000           # of a subset that are kept
OPTIMIZER = "optimizer: "
LEFT_OUT = (".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache")  # linked to
SCRATCH = ".hvdscale."                  # begins the name of a folder in TMPDIR, of any doctor that runs
SAVED, WRITTEN, LOADED, READ = "saved", "written", "loaded", "read"

State = dict[str, tuple[int, int]]      # path -> bytes, time of the last change in ns


@dataclass(frozen=True)
class GeneratorUse:
    """Random generators around a piece of work."""
    before: dict[str, str]      # a digest of each global one's state
    moved: frozenset[str]       # those that moved; ``own`` among them: any that the script has made


NOTHING = GeneratorUse({}, frozenset())


@dataclass
class LoadedBatch:
    """A batch that a loader returned."""
    ids: tuple[int | str, ...]      # of its examples in the underlying data set; empty for an iterable data set
    contents: tuple[str, ...]       # a digest of each example, with a dot between those of its parts; empty if unknown
    examples: int                   # how many
    number: int                     # of batches of all loaders that this process had fetched with it
    draws: GeneratorUse | None = None       # of reading it in this process; None: loader workers read it


@dataclass
class Sampling:
    """The sampler of a loader; None where it has no such attribute."""
    name: str
    length: int | None
    replicas: int | None
    shuffle: bool | None
    replacement: bool
    padded: int             # examples that a DistributedSampler repeats an epoch
    left_out: int           # examples that it drops an epoch
    drops_last: bool        # the loader drops an incomplete batch
    settable: bool = False      # it has a method set_epoch
    epoch: int | None = None    # what that of a DistributedSampler was last given
    line: str = ""              # and where


@dataclass
class Iteration:
    """One pass over a loader."""
    data: tuple[str, int]       # the underlying data set's class and length (-1: unknown)
    iterable: bool
    sampling: Sampling
    updates: int                # made when it began
    seed: int | None            # that loader workers are seeded from; None: no loader workers
    subset: int | None = None   # which of the record's ``subsets`` of the data set the loader has; None: all of it
    batches: list[LoadedBatch] = field(default_factory=list)
    rest: list[tuple[int | str, ...]] = field(default_factory=list)     # ids of each batch left when it was cut
    trained: bool = False       # a backward pass followed one of its batches
    ended: bool = False         # it was read to its end
    cut: int | None = None      # after how many updates the watcher ended it; None: it did not
    whole: bool = False         # it has returned all its batches
    buffers: str = ""           # a digest of batch-norm's statistics when it ended; empty unless it was evaluated
    models: tuple[str, ...] = ()        # digests of the parameters of each model that was evaluated in it
    line: str = ""              # of the loop over it
    made: str = ""              # the line where its loader was made; else that of the loop
    listed: bool = False        # it was read whole before a backward pass, or for batch-norm's statistics alone


@dataclass
class LossCall:
    """One call of a loss function of torch, seen from the backward pass."""
    name: str
    count: float            # of targets it is taken over (weighted, if the classes are)
    total: float            # derivative of what was differentiated by this loss as a mean
    line: str
    values: np.ndarray      # of each target, where the call gives them one by one; else their sum
    weights: np.ndarray     # likewise; else the largest


@dataclass
class BackwardPass:
    """One backward pass: local numbers, before any reduction over ranks."""
    loss: float             # the value that was differentiated
    gradient: np.ndarray
    losses: list[LossCall]
    fetched: dict[int, int]     # batches that each iteration over a loader had returned by then, those of training
    draws: GeneratorUse     # between the first call of a module and the backward pass
    rough: bool             # computed in less than 32 bits
    line: str
    prepared: GeneratorUse = NOTHING    # between the batch, or the pass before, and the first call of a module
    again: bool = False     # no module was called since the pass before
    scale: float = 1.0      # of a GradScaler
    # of the module first called: layers of dropout and normalization, and those in evaluation mode as the pass ends
    layers: tuple[int, int] = 0, 0


@dataclass
class Clip:
    """A call that clips gradients."""
    norm: float             # before
    limit: float
    passes: int             # of the update, that came before it
    line: str
    early: bool = False     # Horovod had not combined the gradients yet
    scale: float = 1.0      # what a GradScaler had multiplied them by
    square: float = 0.0     # the sum of the squares of this rank's gradients before


@dataclass
class Update:
    """One step of an optimizer. Samples are numbers at fixed places of its parameters."""
    gradient: np.ndarray        # as the step took it
    before_clips: np.ndarray    # without what clipped it after the last pass
    parameters: np.ndarray
    digest: str                 # of all parameters before the step
    rates: tuple[float, ...]
    positions: tuple[int, ...]  # of the learning-rate schedules
    passes: list[BackwardPass]
    clips: list[Clip]
    line: str
    digest_after: str = ""
    after: np.ndarray = field(default_factory=lambda: np.empty(0))      # the parameters after the step
    square: float = 0.0     # the sum of the squares of this rank's gradients; 0: unknown, of a flat optimizer's
    own: np.ndarray | None = None       # which numbers this rank has, where parameters are divided: see state.join


@dataclass
class OptimizerUpdates:
    name: str                       # its class
    sampled: list[tuple[str, int]]  # the name of each parameter, how many numbers of it the samples have, in order
    updates: list[Update] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)      # of its groups, such as "momentum of group 0"
    flat: bool = False      # it has other tensors, such as a part of all parameters in a row: samples are the model's


@dataclass
class Logged:
    """A loss or norm that a rank printed or logged."""
    name: str
    value: float
    within: float           # half of its last digit
    made: int               # updates before


@dataclass
class FileUse:
    """A file or folder that was used."""
    act: str                # SAVED and LOADED: by a function for checkpoints
    path: str               # in the script's folder a relative one; of what was saved, the name it was given afterwards
    updates: int            # made before
    passes: int             # made of the next update
    line: str
    values: dict[str, str] = field(default_factory=dict)    # of what was saved: numbers, text, digests of tensors


@dataclass
class Start:
    """What an update of such a script begins from, at the first call of a module after the update before."""
    updates: int                # made before
    # described by tensors.describe: the parameters and buffers of the process's modules; the states of optimizers, by
    # key and parameter, and their settings, by key and group, whose names begin with OPTIMIZER
    values: dict[str, str]
    parts: dict[str, np.ndarray]        # samples of those of which the rank has a part


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
    error: str = ""                                                 # traceback
    held: list[str] = field(default_factory=list)       # contents of the data set that is trained on, if it is small
    wrapped: str = ""                                   # the line where a wrapper last took a model
    group: int = 0                                      # ranks of the smallest group of a wrapper; 0: none wraps
    untrained_later: dict[str, str] | None = None       # as untrained, after the updates to watch
    logged: list[Logged] = field(default_factory=list)
    schedule: tuple[str, int] = "", 0       # of one with an end of its own: its class, and the steps it has
    library: str = ""                                   # by which it trains, whose options findings name
    files: list[FileUse] = field(default_factory=list)  # that were written
    # of a script that is stopped or started again, also those that were read, and:
    starts: list[Start] = field(default_factory=list)
    optimized: list[str] = field(default_factory=list)  # names of the tensors that an optimizer has
    printed: list[tuple[int, str]] = field(default_factory=list)    # updates made before; "epoch 3" and the like

    @property
    def updates(self) -> list[Update]:
        """The updates of the optimizer that stepped first."""
        return self.optimizers[0].updates if self.optimizers else []

    @property
    def made(self) -> int:
        """Updates so far: the most that any optimizer has made."""
        return max((len(optimizer.updates) for optimizer in self.optimizers), default=0)

    @property
    def was_cut(self) -> bool:
        """Whether the watcher ended an iteration over a loader."""
        return any(iteration.cut is not None for iteration in self.iterations)

    def start(self, updates: int) -> Start | None:
        """What the update after so many began from; None where it was not seen."""
        return next((one for one in self.starts if one.updates == updates), None)

    def save(self, folder: Path) -> None:
        path = file_of(folder, self.rank, RECORD)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self, default=_as_json), encoding="utf-8")
        part.replace(path)                      # never seen half written


def uses(records: Iterable[Record], *acts: str) -> list[FileUse]:
    return [file for record in records for file in record.files if file.act in acts]


def written_outside(records: Iterable[Record]) -> set[str]:
    """Files that were written outside of the script's folder, but for temporary ones."""
    left_out = tuple(os.path.join(os.path.realpath(folder), "") for folder in (
        tempfile.gettempdir(), "/dev", "/proc", Path.home() / ".cache"))
    return {one.path for one in uses(records, WRITTEN) if os.path.isabs(one.path) and not one.path.startswith(left_out)}


def least(records: Iterable[Record]) -> int:
    """The updates that all ranks made."""
    return min((record.made for record in records), default=0)


def state_of(folder: Path) -> State:
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(SCRATCH)]
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):        # another process may remove it meanwhile
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    found[os.path.relpath(path, folder)] = status.st_size, status.st_mtime_ns
    return found


def load(folder: Path, rank: int, workers: int) -> Record:
    """The record of a rank as it was last saved; an empty one where it saved none."""
    path = file_of(folder, rank, RECORD)
    return _from_json(Record, json.loads(path.read_bytes())) if path.exists() else Record(rank, workers)


def _as_json(value: Any) -> Any:
    """What json has no form for: arrays keep their bits."""
    if isinstance(value, np.ndarray):
        return b64encode(value.tobytes()).decode()
    return sorted(value) if isinstance(value, frozenset) else vars(value)


def _from_json(kind: Any, value: Any) -> Any:
    """The value of that type: one of the records, or of what their fields are made of."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return kind(**{one.name: _from_json(one.type, value[one.name]) for one in fields(kind)})
    if kind is np.ndarray:
        return np.frombuffer(b64decode(value)).copy()
    if origin in (list, frozenset) or origin is tuple and inner[-1] is ...:
        return origin(_from_json(inner[0], one) for one in value)
    if origin is tuple:
        return tuple(map(_from_json, inner, value))
    if origin is dict:
        return {inner[0](key): _from_json(inner[1], one) for key, one in value.items()}
    return _from_json(inner[0], value) if origin is UnionType and value is not None else value
