"""A profile: traces of five updates, and what they say of operators and of communication, joined over the ranks."""
import gzip
import json

import pytest
import torch

from hvdscale.scaling.rank import Profile, communication_of


def test_the_updates_after_the_first_call_are_traced_and_their_operators_named(tmp_path):
    profile, model = Profile(tmp_path / "rank0.json.gz"), torch.nn.Linear(64, 64)
    optimizer, ends = torch.optim.SGD(model.parameters(), 0.1), []
    while not any(ends):
        model(torch.ones(256, 64)).sum().backward()
        optimizer.step()
        ends.append(profile.update_ends())
    assert ends == [False] * 5 + [True]
    trace = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))["traceEvents"]
    assert sum(event["name"] == "Optimizer.step#SGD.step" and event["ph"] == "X" for event in trace) == 5
    names = [name for name, _ in profile.operators]
    assert len(names) == 3 and {"aten::addmm", "aten::mm"} & {*names}
    assert communication_of([tmp_path / "rank0.json.gz"]) == [dict(communication=0, exposed=0, hidden=0, late=0)]


def event(name, begin, end, collective=None, cat="cpu_op"):
    return {"ph": "X", "name": name, "ts": begin, "dur": end - begin, "cat": cat,
            "args": {"Comms Id": collective} if collective else {}}


def kernel(name, begin, end, collective=None):
    return event(name, begin, end, collective, "kernel")


NCCL = "ncclDevKernel_AllReduce_Sum_f32"


@pytest.mark.parametrize("ranks, sent, exposed, late", [
    ([[event("gloo:all_reduce", 0, 100), event("aten::mm", 20, 60), event("autograd::engine", 0, 100)]],
     [100], [60], [0]),
    ([[kernel(NCCL, 0, 50), kernel("gemm", 40, 90), event("aten::mm", 0, 90)]], [50], [40], [0]),
    ([[event("aten::mm", 0, 10)]], [0], [0], [0]),
    # joined by their order: rank 1 comes to the first 30 later, rank 0 to the second 10
    ([[event("gloo:all_reduce", 0, 40), event("gloo:all_reduce", 50, 60)],
      [event("gloo:all_reduce", 1030, 1040), event("gloo:all_reduce", 1040, 1060)]], [50, 30], [50, 30], [30, 10]),
    # by their id, where two streams have them in another order, and a send that no other rank has
    ([[kernel(NCCL, 0, 30, 7), kernel(NCCL, 40, 50, 8)], [kernel(NCCL, 0, 10, 8), kernel(NCCL, 20, 24, 7),
                                                          kernel(NCCL, 30, 40, 9)]], [40, 24], [40, 24], [26, 0])])
def test_communication_is_exposed_where_nothing_is_computed_beside_it_and_joined_over_the_ranks(
        tmp_path, ranks, sent, exposed, late):
    paths = [tmp_path / str(rank) for rank in range(len(ranks))]
    for path, events in zip(paths, ranks):
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {"ph": "M", "name": "thread"}]}).encode()))
    found = [{name: 5e6 * seconds for name, seconds in one.items()} for one in communication_of(paths)]
    assert found == [pytest.approx(dict(communication=whole, exposed=alone, hidden=whole - alone, late=waited))
                     for whole, alone, waited in zip(sent, exposed, late)]
