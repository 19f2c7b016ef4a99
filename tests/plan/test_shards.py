"""Which examples make up a step and who takes them, against loops over the examples one by one."""
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from hvdscale.plan.batch_schedule import BatchSchedule
from hvdscale.plan.shards import Stream, epoch_order, even_bounds, group_bounds, step_passes, stream_key


SIZES = [(1, 1), (2, 1), (7, 1), (7, 3), (7, 7), (53, 8), (53, 53), (60, 12), (60, 59), (101, 100)]     # (n, B)


def slow_step(stream, step):
    """The examples of a step, from a list of all epochs cut up one step after the other."""
    n, batch = stream.examples, stream.batches.first
    epochs = [epoch_order(n, stream.seed, epoch).tolist() for epoch in range((step + 2) * batch // n + step + 2)]
    if stream.last_batch == "carry":
        steps = [list(chunk) for chunk in chunks(sum(epochs, []), batch)]
    else:
        steps = [chunk for order in epochs for chunk in chunks(order, batch)
                 if stream.last_batch == "short" or len(chunk) == batch]
    return steps[step]


def chunks(items, size):
    return [items[i:i + size] for i in range(0, len(items), size)]


@pytest.mark.parametrize("last_batch", ["carry", "short", "drop"])
@pytest.mark.parametrize("n, batch", SIZES)
def test_a_step_has_the_examples_of_the_epochs_laid_end_to_end(n, batch, last_batch):
    stream = Stream(n, BatchSchedule((batch,)), seed=4, last_batch=last_batch)
    before = 0
    for step in range(min(25, 3 * math.ceil(n / batch) + 2)):
        wanted = slow_step(stream, step)
        assert stream.size(step) == len(wanted)
        assert stream.examples_before(step) == before
        before += len(wanted)
        assert stream.visits(step, 0, len(wanted)).indices.tolist() == wanted
        middle = len(wanted) // 3
        assert stream.visits(step, middle, len(wanted)).indices.tolist() == wanted[middle:]
        assert stream.visits(step, middle, middle).indices.tolist() == []


@pytest.mark.parametrize("n, batch", SIZES)
def test_every_example_is_seen_once_an_epoch(n, batch):
    epochs = 3
    carried = Stream(n, BatchSchedule((batch,)), seed=1)
    seen = np.concatenate([carried.visits(step, 0, batch).indices for step in range(math.ceil(epochs * n / batch))])
    for epoch in range(epochs):
        assert sorted(seen[epoch * n:(epoch + 1) * n]) == list(range(n))
    short = Stream(n, BatchSchedule((batch,)), seed=1, last_batch="short")
    steps = range(short.steps_in(epochs))
    seen = Counter(i for step in steps for i in short.visits(step, 0, short.size(step)).indices.tolist())
    assert seen == {i: epochs for i in range(n)}
    assert short.examples_before(len(steps)) == epochs * n


@pytest.mark.parametrize("n, batch", SIZES)
def test_drop_leaves_out_less_than_a_batch_and_repeats_none(n, batch):
    stream = Stream(n, BatchSchedule((batch,)), seed=1, last_batch="drop")
    assert stream.steps_in(1) == n // batch
    for epoch in range(3):
        steps = range(stream.steps_in(epoch), stream.steps_in(epoch + 1))
        seen = [i for step in steps for i in stream.visits(step, 0, stream.size(step)).indices.tolist()]
        assert len(set(seen)) == len(seen) > n - batch


GRID = [(n, batch, ghost, last)
        for n, batch in [(53, 24), (53, 22), (53, 10), (53, 53), (53, 2), (53, 1), (200, 65), (40, 33)]
        for ghost in (2, 3, 4, 32) for last in ("carry", "short", "drop")]


@pytest.mark.parametrize("n, batch", SIZES)
@pytest.mark.parametrize("last", ["carry", "short", "drop"])
def test_every_visit_names_its_epoch(n, batch, last):
    stream, seen = Stream(n, BatchSchedule((batch,)), 4, last), Counter()
    for step in range(2 * math.ceil(n / batch)):
        visits = stream.visits(step, 0, stream.size(step))
        assert visits.seed == 4
        seen.update(zip(visits.epochs.tolist(), visits.indices.tolist()))
    assert set(seen.values()) == {1}                                    # an example once an epoch
    assert {epoch for epoch, _ in seen} >= {0, 1}
    for epoch, index in seen:
        assert index in epoch_order(n, 4, epoch)


@pytest.mark.parametrize("workers, accumulate", list(itertools.product([1, 2, 3, 4, 8], [1, 2, 3])))
def test_the_passes_of_all_ranks_partition_every_step(workers, accumulate):
    for n, batch, ghost, last in GRID:
        stream = Stream(n, BatchSchedule((batch,)), 0, last)
        for size in {stream.size(step) for step in range(2 * math.ceil(n / batch))}:
            ranks = step_passes(size, ghost, workers, accumulate)
            assert [len(passes) for passes in ranks] == [accumulate] * workers
            positions = [p for passes in ranks for a, b, _ in passes for p in range(a, b)]
            assert sorted(positions) == list(range(size))


@pytest.mark.parametrize("workers, accumulate", list(itertools.product([1, 2, 3, 4, 8], [1, 2, 3])))
def test_an_unshared_pass_has_whole_groups_and_a_shared_one_its_own(workers, accumulate):
    for batch, ghost in itertools.product((1, 2, 5, 22, 24, 53, 64), (2, 3, 8, 32)):
        groups, ranks = group_bounds(batch, ghost), step_passes(batch, ghost, workers, accumulate)
        if len(groups) - 1 < accumulate:
            assert all(part.shared for passes in ranks for part in passes)
            continue
        for passes in zip(*ranks):
            shared = {part.shared for part in passes}
            assert len(shared) == 1                             # so all ranks join its reductions, or none
            if shared == {True}:
                assert all(part.stop > part.start for part in passes)
                assert passes[0].start in groups and passes[-1].stop in groups
            else:
                assert all(edge in groups for part in passes for edge in part[:2])


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
def test_ranks_take_whole_groups_in_counts_that_differ_by_one_at_most(workers):
    for batch, ghost in itertools.product(range(1, 140), (2, 3, 8, 32)):
        groups = group_bounds(batch, ghost)
        passes = [rank[0] for rank in step_passes(batch, ghost, workers, 1)]
        if passes[0].shared:
            counts = [part.stop - part.start for part in passes]        # single examples
        else:
            counts = [groups.index(part.stop) - groups.index(part.start) for part in passes]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("ghost", [2, 3, 8, 32])
def test_groups_are_even_partition_the_step_and_are_never_of_one(ghost):
    for batch in range(1, 300):
        bounds = group_bounds(batch, ghost)
        sizes = np.diff(bounds)
        assert (bounds[0], bounds[-1]) == (0, batch)
        assert sizes.max() - sizes.min() <= 1
        assert sizes.min() >= min(2, batch)
        assert sizes.max() <= ghost + (ghost == 2 and batch % 2)        # an odd batch in pairs has one group of three


@pytest.mark.parametrize("batch, ghost, sizes", [
    (256, 32, [32] * 8), (256, 256, [256]), (10, 32, [10]), (65, 32, [21, 22, 22]), (5, 2, [2, 3]),
    (3, 2, [3]), (1, 2, [1])])
def test_a_step_is_cut_into_groups_of_at_most_the_ghost_batch(batch, ghost, sizes):
    assert np.diff(group_bounds(batch, ghost)).tolist() == sizes


@pytest.mark.parametrize("total, parts", [(0, 3), (2, 3), (3, 3), (10, 3), (100, 7)])
def test_even_bounds_differ_by_one_at_most(total, parts):
    lengths = np.diff(even_bounds(total, parts))
    assert len(lengths) == parts and lengths.sum() == total
    assert lengths.max() - lengths.min() <= 1


def test_an_epochs_order_is_a_permutation_that_is_fixed_for_seed_and_epoch():
    """Literal numbers: a library that drew others would change every run's trajectory unseen."""
    assert epoch_order(1000, 0, 0)[:8].tolist() == [948, 961, 380, 678, 539, 76, 306, 63]
    assert epoch_order(1000, 0, 1)[:8].tolist() == [783, 22, 491, 163, 817, 108, 516, 12]
    assert epoch_order(1000, 1, 0)[:8].tolist() == [676, 165, 367, 375, 568, 712, 200, 127]
    assert epoch_order(10, 7, 3).tolist() == [5, 0, 6, 9, 2, 8, 3, 4, 1, 7]
    order = epoch_order(1000, 0, 0)
    assert sorted(order) == list(range(1000)) and order.dtype == np.uint32
    with pytest.raises(ValueError):
        order[0] = 1


def test_stream_keys_are_fixed_and_differ_by_seed_purpose_and_place():
    assert stream_key(0, "order", 0) == 1829853113658518448
    assert stream_key(3, "model") == 762948670211739735
    places = [(seed, purpose, *where) for seed in range(3) for purpose in ("order", "dropout", "model")
              for where in [(), (0,), (1,), (0, 1), (1, 0), (11,), (1, 1)]]
    keys = [stream_key(*place) for place in places]
    assert len(set(keys)) == len(places)
    assert all(0 <= key < 2**63 for key in keys)
