"""A profile: a trace of five updates, and what it says of their operators and their communication."""
import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from hvdscale.scaling.profile import Profile, summary_of


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
    names = [name for name, _ in profile.found["operators"]]
    assert len(names) == 3 and {"aten::addmm", "aten::mm"} & {*names}
    assert profile.found["communication"] == profile.found["exposed"] == 0


def event(name, start, end, device=DeviceType.CPU):
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start, end=end), device_type=device)


@pytest.mark.parametrize("events, sent, exposed", [
    ([event("gloo:all_reduce", 0, 100), event("aten::mm", 20, 60), event("autograd::engine", 0, 100)], 100, 60),
    ([event("ncclDevKernel_AllReduce_Sum_f32", 0, 50, DeviceType.CUDA), event("gemm", 40, 90, DeviceType.CUDA),
      event("aten::mm", 0, 90)], 50, 40),
    ([event("aten::mm", 0, 10)], 0, 0)])
def test_communication_is_exposed_where_nothing_is_computed_beside_it(events, sent, exposed):
    found = summary_of(SimpleNamespace(events=lambda: events, key_averages=list))
    assert [5e6 * found[name] for name in ("communication", "exposed")] == pytest.approx([sent, exposed])
