"""Batches on their device, in order: read when needed, or ahead of time by loader workers.

    feed = Feed(split, stream, passes, device, loader_workers)
    for batch in feed.batches(step): ...            one for each of this rank's passes
    loader = Loader(splits, device, loader_workers)
    for batch in loader.batches([("val", visits), ...]): ...

Loader workers are processes that each read whole batches; torch's DataLoader keeps the order. Their number changes the
time only: an example is the same whichever process reads it.
"""

import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from multiprocessing import forkserver, resource_tracker
from operator import itemgetter

import torch
from torch.utils.data import DataLoader

from ..errors import DataError, HvdscaleError, describe_raised
from ..plan.shards import Pass, Stream, Visits
from ..system.hangup import STOPPING
from ..system.forked import end_with_parent
from ..system.run_module import away_from_here
from .splits import MapSplit, Split, to_device

AHEAD = 2           # batches that a loader worker reads ahead
TRAIN = "train"


class Loader:
    """Batches of some splits, by name. Loader workers read them all if any split is a map-style data set. dtype: of
    floating-point tensors on the device; None: not converted"""

    def __init__(self, splits: Mapping[str, Split | MapSplit], device: torch.device, loader_workers: int = 0,
                 dtype: torch.dtype | None = None):
        self._splits, self._device, self._dtype = splits, device, dtype
        self._order, self._loader = _Order(), None
        self.seconds = 0.0          # spent waiting for batches so far
        if loader_workers and any(isinstance(split, MapSplit) for split in splits.values()):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This DataLoader will create")        # more workers than cores
                self._loader = DataLoader(
                    _Batches(splits), batch_size=None, sampler=self._order, collate_fn=_identity,
                    num_workers=loader_workers, prefetch_factor=AHEAD, persistent_workers=True,
                    worker_init_fn=end_with_parent, multiprocessing_context=_context(),
                    pin_memory=device.type == "cuda", generator=torch.Generator())

    def batches(self, wanted: Iterable[tuple[str, Visits]], here: bool = False) -> Iterator:
        """The batches of these visits to splits; an earlier request that is not used up is dropped, but for ``here``,
        where this process reads them itself. Raises DataError naming the example that cannot be read, or if a loader
        worker is lost."""
        return self._place(self._read(wanted) if here or self._loader is None else self._receive(wanted))

    def close(self) -> None:
        if self._loader is not None and self._loader._iterator is not None:
            self._loader._iterator._shutdown_workers()          # DataLoader has no public method for it
        self._loader = None

    def _place(self, taken: Iterator) -> Iterator:
        """Move the batches to the device, timing the wait for each."""
        started = time.perf_counter()
        for batch in taken:
            batch = to_device(batch, self._device, self._dtype)
            self.seconds += time.perf_counter() - started
            yield batch
            started = time.perf_counter()
        self.seconds += time.perf_counter() - started

    def _read(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        """The batches; small ones of one split are read several at a time."""
        for name, visits in groupby(wanted, itemgetter(0)):
            split, visits = self._splits[name], map(itemgetter(1), visits)
            yield from split.take_each(visits) if type(split) is Split else map(split.take, visits)

    def _receive(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        self._order.wanted = wanted
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")       # the error below says it
                received = iter(self._loader)
        except Exception as error:          # of pickling, or raised by an object's own __reduce__
            if self._loader._iterator is not None:      # the workers had started
                raise _lost_worker(error) from None
            raise DataError(f"the data set cannot be sent to loader workers: {error}. Define its class and its "
                            "functions at the top level of a module, or set loader_workers=0") from None
        while True:
            try:
                batch = next(received)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise _lost_worker(error) from None
            if isinstance(batch, DataError):
                raise batch
            yield batch


class Feed:
    """The batches of a rank's training passes, step after step; loader workers read the next steps ahead.
    passes: step -> the rank's passes in it, none of them empty"""

    def __init__(self, split: Split | MapSplit, stream: Stream, passes: Callable[[int], Sequence[Pass]],
                 device: torch.device, loader_workers: int = 0, dtype: torch.dtype | None = None):
        self.loader = Loader({TRAIN: split}, device, loader_workers, dtype)
        self._stream, self._passes = stream, passes
        self._batches, self._next = None, None          # _next: the step whose batches come next

    def batches(self, step: int) -> Iterator:
        """One for each of the step's passes. Steps may come in any order; consecutive ones are read ahead."""
        passes, follows = len(self._passes(step)), step == self._next
        if passes and not follows:
            self._batches = self.loader.batches(self._wanted(step))
        self._next = step + 1 if follows and not passes else None
        for left in reversed(range(passes)):
            batch = next(self._batches)
            if left == 0:
                self._next = step + 1
            yield batch

    def read(self, step: int, part: Pass) -> Iterator:
        """The batch of one pass over any positions of a step, read by this process; reading ahead continues."""
        return self.loader.batches([(TRAIN, self._stream.visits(step, part.start, part.stop))], here=True)

    def _wanted(self, first: int) -> Iterator[tuple[str, Visits]]:
        for step in count(first):
            for part in self._passes(step):
                yield TRAIN, self._stream.visits(step, part.start, part.stop)


def _lost_worker(error: Exception) -> DataError:
    return DataError(f"a loader worker was lost: {error}. The reason is printed above, unless it was killed because "
                     "memory or shared memory (/dev/shm) ran out: try fewer loader_workers")


class _Order:
    wanted: Iterable[tuple[str, Visits]] = ()

    def __iter__(self) -> Iterator[tuple[str, Visits]]:
        return iter(self.wanted)


class _Batches:
    """The data set that a DataLoader's workers read: whole batches by split and visits, or a DataError."""

    def __init__(self, splits: Mapping[str, Split | MapSplit]):
        self._splits = splits

    def __getitem__(self, wanted: tuple[str, Visits]):
        name, visits = wanted
        try:
            return self._splits[name].take(visits)
        except HvdscaleError as error:
            return DataError(str(error))
        except (Exception, SystemExit) as error:        # of an augmentation, or of the user's own split
            return DataError(f"a batch of the {name} split cannot be read: {describe_raised(error)}")


def _identity(batch):
    return batch


def _context():
    """The context that starts loader workers: forked from a fork server, as a process with MPI, CUDA or threads cannot
    be forked. The server and its workers block the signals that ask a run to stop after its current step."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    sys.warnoptions.append("ignore:resource_tracker")       # no warning beside the error that ends a run
    try:
        with away_from_here():
            resource_tracker.ensure_running()                   # which unblocks signals
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
            forkserver.ensure_running()
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
