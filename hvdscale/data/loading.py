"""Batches on their device, in order: read in line, or ahead of their use by loader workers.

    feed = Feed(split, stream, passes, device, loader_workers)
    for batch in feed.batches(step): ...            those of this rank's passes, one after the other
    loader = Loader(splits, device, loader_workers)
    for batch in loader.batches([("val", visits), ...]): ...

Loader workers are processes that each take whole batches, torch's DataLoader keeping the order. An example is the same
whoever reads it, so their number changes the time alone.
"""
from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker

import torch
from torch.utils.data import DataLoader

from ..errors import DataError, HvdscaleError, describe_raised
from ..plan.shards import Pass, Stream, Visits
from .splits import MapSplit, Split, to_device

AHEAD = 2           # batches that a loader worker reads ahead
TRAIN = "train"


class Loader:
    """Batches of some splits, by name. With loader workers and a map-style data set among them, these read all.

    dtype    that floating-point tensors are converted to on the device; None: none are
    seconds  spent so far in waiting for batches
    """

    def __init__(self, splits: Mapping[str, Split | MapSplit], device: torch.device, loader_workers: int = 0,
                 dtype: torch.dtype | None = None):
        self._splits, self._device, self._dtype = splits, device, dtype
        self._order, self._loader = _Order(), None
        self.seconds = 0.0
        if loader_workers and any(isinstance(split, MapSplit) for split in splits.values()):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This DataLoader will create")        # more than there are cores
                self._loader = DataLoader(
                    _Taken(splits), batch_size=None, sampler=self._order, collate_fn=_as_taken,
                    num_workers=loader_workers, prefetch_factor=AHEAD, persistent_workers=True,
                    worker_init_fn=_end_with_parent, multiprocessing_context=_context(),
                    pin_memory=device.type == "cuda", generator=torch.Generator())

    def batches(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        """The batches of these visits to splits; what was asked for before and not taken is forgotten.

        Raises DataError naming the example that cannot be read, or where a loader worker is lost.
        """
        return self._placed(self._read(wanted) if self._loader is None else self._received(wanted))

    def batches_in_line(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        """The batches of these visits, read by this process; what was asked for before stays so."""
        return self._placed(self._read(wanted))

    def close(self) -> None:
        """End the loader workers."""
        if self._loader is not None and self._loader._iterator is not None:
            self._loader._iterator._shutdown_workers()          # a DataLoader has no public way
        self._loader = None

    def _placed(self, taken: Iterator) -> Iterator:
        """The batches on the device, the wait for each timed."""
        while True:
            started = time.perf_counter()
            batch = next(taken, _END)
            if batch is not _END:
                batch = to_device(batch, self._device, self._dtype)
            self.seconds += time.perf_counter() - started
            if batch is _END:
                return
            yield batch

    def _read(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        return (self._splits[name].take(visits) for name, visits in wanted)

    def _received(self, wanted: Iterable[tuple[str, Visits]]) -> Iterator:
        self._order.wanted = wanted
        received = self._started()
        while True:
            try:
                batch = next(received)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:
                raise _lost(error) from None
            if isinstance(batch, _Failure):
                raise DataError(batch.message)
            yield batch

    def _started(self) -> Iterator:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")       # the error says it
                return iter(self._loader)
        except Exception as error:          # of the pickling, and whatever an object's own way of being pickled raises
            if self._loader._iterator is not None:      # started long since
                raise _lost(error) from None
            raise DataError(f"the data set cannot be sent to loader workers: {error}. Define its class, and the "
                            "functions that it holds, at the top of a module, or set loader_workers=0") from None


class Feed:
    """The batches of a rank's training passes, step after step; loader workers go on to the next steps meanwhile.

    passes   step -> the rank's passes in it, none of them empty
    """

    def __init__(self, split: Split | MapSplit, stream: Stream, passes: Callable[[int], Sequence[Pass]],
                 device: torch.device, loader_workers: int = 0, dtype: torch.dtype | None = None):
        self._loader = Loader({TRAIN: split}, device, loader_workers, dtype)
        self._stream, self._passes = stream, passes
        self._batches, self._next = None, None          # _next: the step whose batches come next

    @property
    def seconds(self) -> float:
        """Spent so far in waiting for batches."""
        return self._loader.seconds

    def batches(self, step: int) -> Iterator:
        """One for each of the step's passes; any step may follow another, the next one follows at once."""
        passes, follows = len(self._passes(step)), step == self._next
        if passes and not follows:
            self._batches = self._loader.batches(self._wanted(step))
        self._next = step + 1 if follows and not passes else None
        for left in reversed(range(passes)):
            batch = next(self._batches)
            if left == 0:
                self._next = step + 1
            yield batch

    def read(self, step: int, part: Pass) -> Iterator:
        """The batch of one pass over any positions of a step, read in line; the steps' order is not left."""
        return self._loader.batches_in_line([(TRAIN, self._stream.visits(step, part.start, part.stop))])

    def close(self) -> None:
        """End the loader workers."""
        self._loader.close()

    def _wanted(self, first: int) -> Iterator[tuple[str, Visits]]:
        for step in itertools.count(first):
            for part in self._passes(step):
                yield TRAIN, self._stream.visits(step, part.start, part.stop)


_END = object()


@dataclass(frozen=True)
class _Failure:
    """What comes from a loader worker instead of a batch."""

    message: str


def _lost(error: Exception) -> DataError:
    return DataError(f"a loader worker was lost: {error}. What ended it stands above; or it was killed, as where "
                     "memory or shared memory (/dev/shm) runs out: try fewer loader_workers")


class _Order:
    """The sampler of a DataLoader: what is wanted now."""

    wanted: Iterable[tuple[str, Visits]] = ()

    def __iter__(self) -> Iterator[tuple[str, Visits]]:
        return iter(self.wanted)


class _Taken:
    """The data set that a DataLoader sees, in its workers: whole batches by split and visits."""

    def __init__(self, splits: Mapping[str, Split | MapSplit]):
        self._splits = splits

    def __getitem__(self, wanted: tuple[str, Visits]):
        name, visits = wanted
        try:
            return self._splits[name].take(visits)
        except HvdscaleError as error:
            return _Failure(str(error))
        except Exception as error:          # of an augmentation, or of a split of the user's own
            return _Failure(f"a batch of the {name} split cannot be read: {describe_raised(error)}")


def _as_taken(batch):
    return batch


def _end_with_parent(_: int) -> None:
    """Have this loader worker end when the process that it reads for does, in whatever way.

    torch watches the process that a worker was forked from, which here is the server.
    """
    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)
    threading.Thread(target=wait, daemon=True).start()


def _context():
    """The way loader workers are started: forked from a server of their own, as a process that uses MPI or CUDA, or has
    threads, cannot be forked.

    The server and its workers are deaf to the signals by which a run is told to end after the step it is in.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    deaf_to = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, deaf_to)
    sys.warnoptions.append("ignore:resource_tracker")       # no word of it beside the error that ends a run
    try:
        resource_tracker.ensure_running()                   # which lets signals in again
        signal.pthread_sigmask(signal.SIG_BLOCK, deaf_to)
        forkserver.ensure_running()
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
