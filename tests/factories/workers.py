"""Worker groups of threads, for tests of what the workers of one step do together, without a launcher."""
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from hvdscale.workers.group import Workers


class Member(Workers):
    """One rank of a group: sums go over the threads, in rank order, of the values there were when they were started."""

    def __init__(self, rank, size, turn, barrier, slots):
        self.rank, self.size, self.local_rank, self.local_size, self.names = rank, size, rank, size, []
        self._turn, self._barrier, self._slots = turn, barrier, slots

    def sum_(self, tensor, name):
        self.start_sum_(tensor, name)()
        return tensor

    def start_sum_(self, tensor, name):
        values = tensor.detach().clone()
        self.names.append(name)

        def wait():
            given = self._exchange((name, values))
            assert {other for other, _ in given} == {name}, "the ranks wait for different sums"
            tensor.copy_(sum(values for _, values in given))
        return wait

    def broadcast_(self, tensor, name, root=0):
        return tensor.copy_(self._exchange(tensor.clone())[root])

    def gather(self, value, name):
        return [given for _, given in self._exchange((name, value))]

    def _exchange(self, value):
        self._slots[self.rank] = value
        self._meet()
        given = list(self._slots)
        self._meet()
        return given

    def _meet(self):
        self._turn.release()
        try:
            self._barrier.wait(30)
        finally:
            self._turn.acquire()


def on_each(workers, function):
    """What the function gives for each member of a group of so many workers, in rank order. One member runs at a time,
    until it waits for the others, and so may use the process's generators; autograd has no threads of its own."""
    turn, barrier, slots, errors = threading.Lock(), threading.Barrier(workers), [None] * workers, []

    def guarded(member):
        with turn, torch.autograd.set_multithreading_enabled(False):
            try:
                return function(member)
            except BaseException as error:
                errors.append(error)
                barrier.abort()         # which the others may meet as they leave it
    with ThreadPoolExecutor(workers) as threads:
        running = [threads.submit(guarded, Member(rank, workers, turn, barrier, slots)) for rank in range(workers)]
    for error in errors:                # the first
        raise error
    return [future.result() for future in running]
