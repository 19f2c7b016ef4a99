"""Batches: the same whoever reads them, in order from any step, and every fault one clear error."""
import os
import random
import signal
import subprocess
import sys
import time
from collections import UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from hvdscale.data.loading import Feed, Loader
from hvdscale.errors import DataError
from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.shards import Pass, Stream, Visits
from hvdscale.workload import Data, MapSplit, Split, to_device
from tests.conftest import command_environment
from tests.factories.datasets import Broken, Noisy, Ragged, padded
from tests.wording import refusals

CPU = torch.device("cpu")
STREAM = Stream(13, BatchSchedule((4,)), seed=3)


def visits(indices, epochs=None, seed=3):
    indices = np.asarray(indices, np.int64)
    return Visits(indices, np.zeros_like(indices) if epochs is None else np.asarray(epochs, np.int64), seed)


def plain(batch):
    """The batch with lists for tensors."""
    if isinstance(batch, dict):
        return {name: part.tolist() for name, part in batch.items()}
    return [part.tolist() for part in batch]


def fed(split, steps, passes, loader_workers=0, stream=STREAM):
    feed = Feed(split, stream, lambda step: passes, CPU, loader_workers)
    try:
        return [plain(batch) for step in steps for _, batch in zip(passes, feed.batches(step))]
    finally:
        feed.loader.close()


# random numbers

def test_what_a_data_set_draws_depends_on_seed_epoch_and_example_alone():
    split, found = MapSplit(Noisy()), {}
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2]):
        for epoch in (0, 1):
            batch = plain(split.take(visits(order, [epoch] * len(order))))
            rows = zip(*(batch[name] for name in ("number", "noise", "numpy", "python")))
            for example, row in zip(order, map(str, rows)):
                assert found.setdefault((example, epoch), row) == row
    assert len(set(found.values())) == len(found) == 8
    assert plain(split.take(visits([0], seed=4))) != plain(split.take(visits([0], seed=3)))


def test_reading_leaves_the_generators_of_the_process_as_they_were():
    def drawn():
        return torch.rand(1).item(), np.random.normal(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    wanted = drawn()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    MapSplit(Noisy()).take(visits([1, 2]))
    with pytest.raises(DataError):
        MapSplit(Broken(2)).take(visits([1, 2]))
    assert drawn() == wanted


def test_an_augmentation_in_memory_draws_by_seed_epoch_and_example_alone():
    """Whatever the batch, the place in it, and the calls before for other examples; two calls draw apart."""
    def augment(inputs, draws):
        return torch.cat([draws.uniform(3), draws.uniform(3), draws.uniform(1)], dim=1)
    split = Split(torch.zeros(13, 1), torch.arange(13), augment=augment)
    found = {}
    for order in ([0, 5, 2], [2, 0, 12, 5], [12]):
        for epoch in (0, 1, 7):
            rows = split.take(visits(order, [epoch] * len(order))).inputs.tolist()
            for i, row in zip(order, rows):
                assert found.setdefault((i, epoch), row) == row
    mixed = split.take(visits([5, 5, 0], [7, 0, 1])).inputs.tolist()
    assert mixed == [found[5, 7], found[5, 0], found[0, 1]]
    numbers = [number for row in found.values() for number in row]
    assert len(set(numbers)) == len(numbers) == 4 * 3 * 7


def test_drawn_numbers_are_uniform_and_unrelated_between_examples_and_epochs():
    split = Split(torch.zeros(5000, 1), torch.zeros(5000), augment=lambda inputs, draws: draws.uniform(2))
    first, second = (split.take(visits(range(5000), [epoch] * 5000)).inputs.numpy() for epoch in (0, 1))
    assert first.min() >= 0 and first.max() < 1
    counts = np.histogram(first, bins=20, range=(0, 1))[0]
    assert abs(counts - 500).max() < 5 * 500 ** 0.5
    for a, b in [(first[:, 0], first[:, 1]), (first[1:, 0], first[:-1, 0]), (first[:, 0], second[:, 0])]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 5000 ** 0.5


def test_drawn_numbers_stay_the_same_from_release_to_release():
    """The published SplitMix64 at these places."""
    def reference(key, place):
        state = (key + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        return ((state ^ state >> 31) >> 11) / 2**53
    from hvdscale.plan.shards import stream_key
    split = Split(torch.zeros(9, 1), torch.zeros(9), augment=lambda inputs, draws: draws.uniform(2))
    got = split.take(visits([8, 1], [2, 3])).inputs.tolist()
    keys = [stream_key(3, "augmentation", epoch, 0) for epoch in (2, 3)]
    assert got == [[reference(keys[0], 16), reference(keys[0], 17)], [reference(keys[1], 2), reference(keys[1], 3)]]


# order

@pytest.mark.parametrize("passes", [[Pass(0, 4)], [Pass(0, 1), Pass(1, 4)]])
@pytest.mark.parametrize("split", [MapSplit(Noisy()), MapSplit(Ragged(), padded),
                                   Split(torch.arange(13), torch.arange(13))], ids=["dicts", "ragged", "memory"])
def test_batches_come_in_order_from_any_step_whoever_reads_them(split, passes):
    """As in a warm-up, which takes step 0 several times, and a resumed run, which goes on in the middle."""
    steps = [0, 0, 1, 2, 3, 4, 0, 7, 8]
    wanted = [plain(split.take(STREAM.visits(step, part.start, part.stop))) for step in steps for part in passes]
    assert fed(split, steps, passes) == wanted
    if isinstance(split, MapSplit):
        assert fed(split, steps, passes, loader_workers=2) == wanted


def test_a_step_left_in_the_middle_begins_anew():
    feed = Feed(MapSplit(Noisy()), STREAM, lambda step: [Pass(0, 2), Pass(2, 4)], CPU)
    first = plain(next(feed.batches(0)))
    assert [plain(batch) for batch in feed.batches(0)][0] == first
    assert plain(next(feed.batches(1))) != first


def test_a_rank_without_a_pass_in_some_steps_gets_the_batches_of_the_others():
    passes = {0: [], 1: [Pass(0, 4)], 2: [], 3: [Pass(1, 3)]}
    feed = Feed(MapSplit(Noisy()), STREAM, lambda step: passes[step % 4], CPU)
    got = [batch["number"].tolist() for step in (0, 0, 1, 2, 3) for batch in feed.batches(step)]
    assert got == [STREAM.visits(1, 0, 4).indices.tolist(), STREAM.visits(3, 1, 3).indices.tolist()]


def test_a_loader_gives_several_splits_in_turn_and_again():
    splits = {"val": MapSplit(Noisy(5)), "test": Split(torch.arange(6), torch.arange(6))}
    wanted = [("val", visits([0, 1])), ("test", visits([4, 2])), ("val", visits([4]))]
    alone = Loader(splits, CPU)
    helped = Loader(splits, CPU, 1)
    expected = [plain(splits[name].take(which)) for name, which in wanted]
    for loader in (alone, helped, helped):
        assert [plain(batch) for batch in loader.batches(wanted)] == expected
    assert alone.seconds > 0 and helped.seconds > 0
    helped.close()


def test_waiting_for_batches_is_timed():
    class Slow(Noisy):
        def __getitem__(self, i):
            time.sleep(0.01)
            return super().__getitem__(i)
    feed = Feed(MapSplit(Slow()), STREAM, lambda step: [Pass(0, 4)], CPU)
    list(feed.batches(0))
    assert 0.04 <= feed.loader.seconds < 1


# splits

class Negated(TensorDataset):
    def __getitem__(self, i):
        return [-values for values in super().__getitem__(i)]


def test_a_tensor_data_set_is_indexed_at_once_and_a_custom_one_asked():
    tensors = torch.arange(13) * 10, torch.arange(13)
    assert plain(MapSplit(Negated(*tensors)).take(visits([3, 1]))) == [[-30, -10], [-3, -1]]
    stacked = MapSplit(TensorDataset(*tensors), lambda pairs: [torch.stack([x for x, _ in pairs])])
    assert plain(stacked.take(visits([3, 1]))) == [[30, 10]]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TensorDataset, "__getitem__", None)
        assert plain(MapSplit(TensorDataset(*tensors)).take(visits([3, 1]))) == [[30, 10], [3, 1]]


def test_the_first_examples_of_a_split_are_the_same_ones():
    split = MapSplit(Noisy())
    assert len(split.first(4)) == 4 and len(split.first(40)) == 13
    assert plain(split.first(4).take(visits([3]))) == plain(split.take(visits([3])))
    augmented = Split(torch.zeros(13, 1), torch.arange(13), augment=lambda inputs, draws: draws.uniform(1))
    assert plain(augmented.first(4).take(visits([3]))) == plain(augmented.take(visits([3])))


def test_training_examples_are_evaluated_without_augmentation():
    split = Split(torch.zeros(13, 1), torch.arange(13), augment=lambda inputs, draws: draws.uniform(1))
    assert Data(split, split).evaluated(5)["train"].take(visits([3])).inputs.tolist() == [[0]]
    assert len(Data(split, split).evaluated(5)["train"]) == 5
    other = MapSplit(TensorDataset(torch.ones(13)))
    given = Data(MapSplit(Noisy()), split, train_eval=other).with_train_subset(6)
    assert len(given.train) == len(given.train_eval) == 6
    assert plain(given.evaluated(5)["train"].take(visits([3]))) == [[1]]


# faults

@pytest.mark.parametrize("loader_workers", [0, 2])
def test_an_example_that_cannot_be_read_is_named(loader_workers):
    with pytest.raises(DataError, match=r"example 5 of Broken cannot be read: OSError: no such picture .*datasets.py"):
        fed(MapSplit(Broken(5)), range(4), [Pass(0, 4)], loader_workers)


def no_augmentation(inputs, draws):
    raise ValueError("too dark")


def test_an_augmentation_that_fails_in_a_loader_worker_is_named_with_its_line():
    split = Split(torch.zeros(5, 1), torch.zeros(5), augment=no_augmentation)
    loader = Loader({"train": split, "val": MapSplit(Noisy(5))}, CPU, 1)
    with pytest.raises(DataError, match=r"of the train split cannot be read: ValueError: too dark \(.*loading.py:\d+"):
        list(loader.batches([("train", visits([1]))]))
    loader.close()


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_examples_that_do_not_make_a_batch_are_named_with_the_way_out(loader_workers):
    with pytest.raises(DataError, match=r"examples (\d+, ){3}\d+ of Ragged cannot form a batch: .*collate function"):
        fed(MapSplit(Ragged()), range(4), [Pass(0, 4)], loader_workers)


def test_a_killed_loader_worker_is_an_error(monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))       # 5 s between looks
    with pytest.raises(DataError, match="a loader worker was lost: .*try fewer loader_workers"):
        fed(MapSplit(Broken(5, "kill")), range(4), [Pass(0, 4)], 2)


def test_a_data_set_that_loader_workers_cannot_be_sent_is_an_error():
    class Local(Noisy):
        pass
    with pytest.raises(DataError, match="cannot be sent to loader workers: .*Local.*loader_workers=0"):
        fed(MapSplit(Local()), range(4), [Pass(0, 4)], 2)


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_splits_that_cannot_be_are_named(golden):
    golden("splits", refusals("splits", DataError, globals()))


CHILD = """
import os, signal, sys, torch
from hvdscale.data.loading import Feed
from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.shards import Pass, Stream
from hvdscale.workload import MapSplit
from tests.factories.datasets import Noisy

if __name__ == "__main__":
    stream = Stream(13, BatchSchedule((4,)), 0)
    feed = Feed(MapSplit(Noisy()), stream, lambda step: [Pass(0, 4)], torch.device("cpu"), 2)
    list(feed.batches(0))
    signal.signal(signal.SIGTERM, lambda *_: print("told to end"))
    if sys.argv[1] == "signal":
        os.killpg(os.getpgid(0), signal.SIGTERM)
        list(feed.batches(5))
    print(*(worker.pid for worker in feed.loader._loader._iterator._workers), flush=True)
    os._exit(0) if sys.argv[1] != "kill" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kill", pytest.param("exit", marks=pytest.mark.slow)])
def test_loader_workers_end_with_the_process_that_they_read_for(how):
    done = subprocess.run([sys.executable, "-c", CHILD, how], capture_output=True, text=True, env=command_environment())
    workers = [int(word) for word in done.stdout.split()]
    deadline = time.monotonic() + 15
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 2 and not any(map(alive, workers)), done.stderr


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def test_a_signal_to_the_whole_group_leaves_loader_workers_at_work():
    """As a scheduler warns a job before its end: the run goes on to the end of its step."""
    done = subprocess.run([sys.executable, "-c", CHILD, "signal"], capture_output=True, text=True, timeout=300,
                          env=command_environment(), start_new_session=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "told to end"), done.stderr
    for worker in done.stdout.splitlines()[1].split():
        if alive(int(worker)):
            os.kill(int(worker), signal.SIGKILL)


# to the device

Pair = namedtuple("Pair", "a b")


@dataclass
class Record:
    values: torch.Tensor
    name: str


def test_tensors_in_any_structure_go_to_the_device_as_the_models_type():
    x, i = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    meta = torch.device("meta")
    got = to_device({"p": Pair(x, [i, "text"]), "r": Record(x, "name"), "t": (x,), "u": UserDict(a=x)}, meta,
                    torch.float64)
    tensors = [got["p"].a, got["p"].b[0], got["r"].values, got["t"][0], got["u"]["a"]]
    assert [t.device.type for t in tensors] == ["meta"] * 5
    assert [t.dtype for t in tensors] == [torch.float64, torch.int64] + [torch.float64] * 3
    assert (got["p"].b[1], got["r"].name) == ("text", "name") and isinstance(got["p"], Pair)


def test_what_knows_its_own_way_to_the_device_takes_it():
    packed = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    assert to_device([packed], torch.device("meta"))[0].data.device.type == "meta"


@pytest.mark.parametrize("shape, augment, sizes", [
    ((8, 8), None, [16, 16, 16, 16, 16]), ((3,), None, [16, 16, 5]), ((8, 8), None, [16, 5, 16]), ((8, 8), None, [1]),
    ((8, 8), lambda inputs, draws: inputs + len(inputs) * draws.uniform(1)[:, 0, None, None], [16, 16, 16])])
def test_batches_that_are_copied_several_at_a_time_are_those_taken_one_by_one(shape, augment, sizes):
    split = Split(torch.rand(200, *shape, dtype=torch.float64), torch.arange(200), augment=augment)
    starts = np.cumsum([0, *sizes])
    visits = [Visits(np.arange(a, b) * 7 % 200, np.full(b - a, a % 3), seed=5) for a, b in zip(starts, starts[1:])]
    batches = list(split.take_each(visits))
    assert len(batches) == len(visits)
    for batch, visited in zip(batches, visits):
        alone = split.take(visited)
        assert torch.equal(batch.inputs, alone.inputs) and torch.equal(batch.labels, alone.labels)


def test_a_data_set_may_count_the_tokens_of_its_first_examples():
    class Counting(Noisy):
        def count_tokens(self, examples):
            return 7 * examples
    split = MapSplit(Counting())
    assert split.count_tokens() == 7 * len(split) and split.first(3).count_tokens() == 21
    assert MapSplit(Noisy()).count_tokens() is None
