"""From records to findings: which batches an update had, and whether an index means one example on all ranks."""
import inspect
from pathlib import Path

import numpy as np
import pytest

from hvdscale import doctor
from hvdscale.doctor.finding import JOB
from hvdscale.doctor.script.compare.pair import KINDS, batches_of, same_data
from hvdscale.doctor.script.record import (BackwardPass, GeneratorUse, Iteration, LoadedBatch, Record, Sampling, Update)

SAMPLING = Sampling("RandomSampler", 9, None, True, False, 0, 0, False)
NOTHING = GeneratorUse({}, frozenset())


def iteration(batches, ended=True):
    return Iteration(("Data", 99), False, SAMPLING, 0, None, None, batches, trained=True, ended=ended)


def update(*fetched):
    """An update of passes, each after so many batches."""
    passes = [BackwardPass(0.0, np.empty(0), [], {0: count}, NOTHING, False, "") for count in fetched]
    return Update(np.empty(0), np.empty(0), np.empty(0), "", (), (), passes, [], "")


@pytest.mark.parametrize("loop, updates, wanted", [
    ("one by one", [(1,), (2,), (3,)], [1, 1, 1]),
    ("one ahead", [(2,), (3,), (4,), (4,)], [1, 1, 1, 1]),
    ("accumulation", [(1, 2), (3, 4), (5,)], [2, 2, 1]),
    ("accumulation, one ahead", [(2, 3), (4, 5), (5,)], [2, 2, 1]),
    ("all of an update at once", [(3, 3, 3), (6, 6, 6)], [3, 3]),
    ("all of an update at once, one ahead", [(3, 3), (5, 5), (6, 6)], [2, 2, 2]),
    ("parts of a batch", [(1, 1), (2, 2)], [1, 1]),
    ("parts of a batch, one ahead", [(2, 2), (3, 3), (3, 3)], [1, 1, 1]),
    ("as many as have enough tokens", [(1, 2, 3), (4,), (5, 6)], [3, 1, 2]),
    ("one that belongs to no update, as the watch ended", [(2,), (3,), (4,)], [1, 1, 1])])
def test_batches_belong_to_updates_by_their_order(loop, updates, wanted):
    batches = [LoadedBatch((at,), (), 1, at + 1) for at in range(updates[-1][-1])]
    updates = [update(*fetched) for fetched in updates]
    found = batches_of(Record(0, 1, iterations=[iteration(batches, len(batches) == sum(wanted))]), updates)
    assert [len(each) for each in found] == wanted
    assert [one for each in found for one in each] == batches[:sum(wanted)]


@pytest.mark.parametrize("contents, wanted", [
    ([{1: "a.x", 2: "b.y"}, {1: "a.x", 3: "c.x"}], True), ([{1: "a.x", 2: "b.y"}, {1: "d.y", 2: "e.x"}], False),
    ([{1: "a.x", 2: "b.y"}, {1: "d.x", 2: "e.y"}], True), ([{1: "a.x", 2: "b.x"}, {1: "d.x", 2: "e.x"}], False),
    ([{1: "a.x"}, {2: "b.y"}], None), ([{1: "a.x", 2: "b.y"}, {2: "b.y", 3: "c.x"}, {3: "c.x"}], True)],
    ids=["same", "others", "augmented", "of one class", "nothing in common", "in a chain"])
def test_an_index_means_one_example_where_ranks_read_the_same_there(contents, wanted):
    batches = [LoadedBatch(tuple(each), tuple(each.values()), len(each), 1) for each in contents]
    records = [Record(rank, len(contents), iterations=[iteration([batch])]) for rank, batch in enumerate(batches)]
    assert same_data(records, ("Data", 99)) is wanted


@pytest.mark.parametrize("kinds, package, files", [(KINDS, doctor.script, "**/*.py"), (JOB, doctor, "*.py")],
                         ids=["script", "job"])
def test_every_kind_of_finding_is_one_that_some_check_makes(kinds, package, files):
    code = "".join(path.read_text() for path in Path(inspect.getfile(package)).parent.glob(files))
    names = [name for table in kinds.checks.values() for name in (*table, *table.get("causes", {}))
             if name not in ("looked_at", "causes")]
    assert len(names) > 50 and [name for name in names if f'"{name}"' not in code] == []
