"""The clock of a script's updates: parts that add up, examples and tokens, and what is left out."""
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdscale.log.schema import RANK_PARTS
from hvdscale.scaling.clock import UpdateClock, ask_driver, size_of, united, within
from hvdscale.watch.rank import watching

NAP = 0.02


class Napping(nn.Module):
    """Sleeps in its backward pass."""

    class Nap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(NAP)
            return gradient

    def forward(self, inputs):
        return self.Nap.apply(inputs)


class Late(TensorDataset):
    def __getitem__(self, index):
        time.sleep(NAP / 4)
        return super().__getitem__(index)


def train(clock, steps=6, evaluate_at=(), nap_in="", passes=1, closure=False):
    examples = Late if nap_in == "data" else TensorDataset
    model = nn.Sequential(nn.Linear(3, 4), Napping() if nap_in == "backward" else nn.ReLU(), nn.Linear(4, 1))
    with watching([clock], details=False):
        optimizer = torch.optim.AdamW(model.parameters(), 0.25)
        for step, (inputs,) in enumerate(DataLoader(examples(torch.ones(4 * steps * passes, 3)), 4)):
            def compute():
                loss = model(inputs).sum()
                if nap_in == "forward":
                    time.sleep(NAP)
                loss.backward()
            if closure:
                optimizer.step(compute)
            else:
                compute()
                if (step + 1) % passes:
                    continue
                optimizer.step()
            if nap_in == "elsewhere":
                time.sleep(NAP)
            if step in evaluate_at:
                model.eval()
                model.train()


def test_the_updates_after_the_warm_up_are_timed_and_then_the_clock_finishes():
    calls = []
    clock = UpdateClock(2, 3, lambda: calls.append(clock.made))
    train(clock)
    assert calls[0] == 5 and clock.made == 6 and len(clock.timed()["step"]) == 3
    assert (clock.optimizer, clock.rate) == ("adamw", 0.25)


@pytest.mark.parametrize("closure", [False, True])                          # by which Lightning calls the passes
@pytest.mark.parametrize("part", ["data", "forward", "backward", "elsewhere"])
def test_time_is_counted_where_it_is_spent_and_what_is_beside_training_in_no_part(part, closure):
    clock = UpdateClock(1, 99, lambda: None)
    train(clock, nap_in=part, closure=closure)
    timed = clock.timed()
    rest = [whole - sum(timed[one][at] for one in RANK_PARTS if one != "step")
            for at, whole in enumerate(timed["step"])]
    assert min(timed.get(part, rest)) >= NAP and min(rest) >= 0


@pytest.mark.parametrize("how, name, counted", [
    (dict(steps=3, passes=2), "examples", [8, 8]), (dict(evaluate_at=[2]), "apart", [0, 0, 1, 0, 0])])
def test_the_passes_of_an_update_are_added_up_and_one_after_an_evaluation_is_apart(how, name, counted):
    clock = UpdateClock(1, 99, lambda: None)
    train(clock, **how)
    assert [min(found, 1) if name == "apart" else found for found in clock.timed()[name]] == counted


def test_the_line_at_which_long_updates_were_is_named():
    clock, model = UpdateClock(6, 99, lambda: None), nn.Linear(3, 1)
    with watching([clock], details=False):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(40):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            if step % 5 == 4:
                time.sleep(5 * NAP)
    clock.timed()
    line = next(at for at, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "5 * NAP" in text)
    assert clock.long.line().endswith(f"test_clock.py:{line}")


def test_a_wait_inside_a_pass_is_no_part_of_the_pass(tmp_path, monkeypatch):
    """Neither in a collective or for one that was begun before, as of FSDP, nor after the last gradient, as of DDP."""
    clock, model = UpdateClock(1, 99, lambda: None), nn.Linear(3, 1)
    clock.wrapped(True, 2)
    queue = torch.autograd.Variable._execution_engine.queue_callback
    model.weight.register_post_accumulate_grad_hook(lambda _: queue(lambda: time.sleep(NAP)))
    monkeypatch.setattr(dist.Work, "wait", lambda *_: time.sleep(NAP))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    with watching([clock], details=False):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            loss = model(torch.ones(2, 3)).sum()
            dist.all_reduce(torch.ones(1))
            dist.all_reduce(torch.ones(1), async_op=True).wait()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
    timed = clock.timed()
    assert min(timed["waiting"]) >= 3 * NAP and max(map(min, (timed["forward"], timed["backward"]))) < NAP


def test_spans_that_overlap_count_once():
    assert united([(5, 6), (1, 3), (2, 4)]) == [(1, 4), (5, 6)]
    assert within([(1, 4), (5, 6)], 2, 5.5) == 2.5


@pytest.mark.parametrize("data, size", [
    (torch.zeros(5, 3), (5, 0)), ((torch.zeros(4, 2), torch.zeros(4)), (4, 0)), (torch.zeros(3, 7).long(), (3, 21)),
    ({"input_ids": torch.zeros(2, 9).long(), "labels": torch.zeros(2, 9).long()}, (2, 18)), ("words", (0, 0)),
    ([torch.tensor(1.0), torch.zeros(6)], (6, 0)), (torch.tensor(1), (0, 0))])
def test_the_size_of_a_batch_is_that_of_its_first_tensor(data, size):
    assert size_of(data) == size


NVML = dict(nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-a1": 7}[uuid],
            nvmlDeviceGetTotalEnergyConsumption=lambda gpu: {7: 2500}[gpu],
            nvmlDeviceGetClockInfo=lambda gpu, clock: {(7, 1): 1200}[gpu, clock],
            nvmlDeviceGetMaxClockInfo=lambda gpu, clock: {(7, 1): 1600}[gpu, clock])


@pytest.mark.parametrize("more, found", [
    (dict(nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 0x21), {"slowed_by": ["heat"]}),
    (dict(nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 0x1), {"slowed_by": []}), ({}, {}), (None, None)])
def test_a_gpu_is_described_by_what_its_driver_knows(monkeypatch, more, found):
    monkeypatch.setitem(sys.modules, "pynvml", None if more is None else SimpleNamespace(**NVML, **more))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a1"))
    known = {} if found is None else {"joules": 2.5, "clock": 0.75, **found}
    assert ask_driver(torch.device("cuda", 0)) == known and ask_driver(torch.device("cpu")) == {}


def test_the_parameters_of_all_optimizers_count_once_and_not_where_they_are_divided():
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    clock = UpdateClock(0, 100, lambda: None)
    for parameters in (one.parameters(), other.parameters(), one.parameters()):
        clock.step_ends(torch.optim.SGD(parameters, 0.1))
    assert clock.parameters == 8 + 6
    clock.sharded("fully_shard")
    clock.step_ends(torch.optim.SGD(one.parameters(), 0.1))
    assert clock.parameters == 0


def test_updates_are_those_of_the_optimizer_that_wraps_one_which_stepped_to_make_its_state():
    parameters = [*torch.nn.Linear(3, 2).parameters()]
    clock, wrapped, other = UpdateClock(0, 100, lambda: None), *(torch.optim.SGD(parameters, 0.1) for _ in range(2))
    for optimizer in (wrapped, other, other, other):
        clock.step_ends(optimizer)
    assert clock.made == 4


def test_on_a_gpu_events_time_the_parts_and_no_update_waits_for_it(monkeypatch):
    """Events as CUDA has them, and a device that is said to be one."""
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = time.perf_counter()

        def elapsed_time(self, end):
            return 1000 * (end.at - self.at)
    waited = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    clock = UpdateClock(1, 99, lambda: None)
    clock.device = torch.device("cuda", 0)
    train(clock, nap_in="backward")
    assert not waited
    timed = clock.timed()
    assert waited == [clock.device] and min(timed["backward"]) >= NAP and max(timed["forward"]) < NAP
    assert all(whole >= back for whole, back in zip(timed["step"], timed["backward"]))
