"""Worker groups of threads, for tests of what the workers of one step do together, without a launcher."""
import threading
from concurrent.futures import ThreadPoolExecutor

from hvdscale.workers.group import Workers


class Member(Workers):
    """One rank of a group: sums go over the threads, in rank order, of the values there were when they were started."""

    def __init__(self, rank, size, barrier, slots):
        self.rank, self.size, self.local_rank, self.local_size = rank, size, rank, size
        self.names = []
        self._barrier, self._slots = barrier, slots

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
        self._barrier.wait(30)
        given = list(self._slots)
        self._barrier.wait(30)
        return given


def on_each(workers, function):
    """What the function gives for each member of a group of so many workers, called at once, in rank order."""
    barrier, slots = threading.Barrier(workers), [None] * workers

    def guarded(member):
        try:
            return function(member)
        except BaseException:
            barrier.abort()
            raise
    with ThreadPoolExecutor(workers) as threads:
        running = [threads.submit(guarded, Member(rank, workers, barrier, slots)) for rank in range(workers)]
        return [future.result() for future in running]
