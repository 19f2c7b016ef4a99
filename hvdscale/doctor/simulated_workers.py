"""Several workers simulated in one process: threads, of which only one runs until it waits for the others."""
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from ..workers.group import Workers


class Member(Workers):
    """One rank of a simulated group. Sums are taken in rank order."""

    def __init__(self, rank: int, size: int, turn: threading.Lock, barrier: threading.Barrier, slots: list):
        self.rank, self.size, self.local_rank, self.local_size = rank, size, rank, size
        self._turn, self._barrier, self._slots = turn, barrier, slots

    def sum_(self, tensor, name):
        self.start_sum_(tensor, name)()
        return tensor

    def start_sum_(self, tensor, name):
        values = tensor.detach().clone()
        return lambda: tensor.copy_(sum(self.gather(values, name)))

    def broadcast_(self, tensor, name, root=0):
        return tensor.copy_(self.gather(tensor.clone(), name)[root])

    def gather(self, value, name):
        self._slots[self.rank] = value
        self._meet()
        given = list(self._slots)
        self._meet()                # so that no rank overwrites what another has yet to read
        return given

    def _meet(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()


def on_each(workers: int, function: Callable[[Member], object]) -> list:
    """The results of calling the function on each member of a group of this many workers; raises what one raises. Only
    one member runs at a time, so it may use the process's generators and other globals."""
    turn, barrier, slots = threading.Lock(), threading.Barrier(workers), [None] * workers
    errors: list[BaseException] = []

    def alone(member: Member):
        # without autograd's own threads: a module's backward may wait for the other members
        with turn, torch.autograd.set_multithreading_enabled(False):
            try:
                return function(member)
            except BaseException as error:
                errors.append(error)
                barrier.abort()
                raise
    with ThreadPoolExecutor(workers) as threads:
        running = [threads.submit(alone, Member(rank, workers, turn, barrier, slots)) for rank in range(workers)]
    if errors:
        raise errors[0]
    return [future.result() for future in running]
