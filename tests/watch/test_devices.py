"""CUDA where there is none: scripts have the CPU in its place, libraries find none, and what is spawned runs here."""
import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hvdscale.watch.devices import need_of_gpu, on_cpu
from hvdscale.watch.rank import watching
from tests.watch.test_watch import Heard

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is redirected")


@pytest.fixture
def heard(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    heard = Heard()
    with watching([heard], local_workers=2, workers=2):
        yield heard


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_only_cuda_devices_become_the_cpu():
    for given in ("cuda", "cuda:1", 1, torch.device("cuda", 0)):
        assert on_cpu(given) in ("cpu", torch.device("cpu"))
    for given in ("cpu", "meta", torch.device("meta"), torch.float32, None, True, "cudart"):
        assert on_cpu(given) is given


def test_a_script_may_name_cuda_in_every_way(heard, tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "saved.pt")
    device, values = torch.device("cuda", 1), torch.ones(2)
    with torch.device("cuda"):
        made = [torch.zeros(2)]
    made += [values.to(1), values.to("cuda:0"), values.to(device, torch.float64), values.to(device=0), values.cuda(1),
             values.pin_memory(), values.new_zeros(2, device=device), torch.full((2,), 1.0, device="cuda"),
             torch.zeros_like(values, device=device), nn.Linear(2, 2, device=device).weight,
             nn.Linear(2, 2).to(0).weight, nn.Linear(2, 2).cuda(0).weight,
             torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(0), device="cuda"),
             *(torch.load(tmp_path / "saved.pt", map_location=place)["weight"]
               for place in ("cuda:1", device, {"cuda:0": "cuda:1"}))]
    assert {one.device.type for one in made} == {"cpu"} and device.type == "cuda"
    assert torch.load(f=tmp_path / "saved.pt")["weight"].tolist() == [1, 1]
    assert heard.names.count("instead") == 1 and "tests/watch/test_devices.py:" in heard.told["instead"][0]


def test_a_script_finds_gpus_and_torch_itself_none(heard):
    assert torch.cuda.is_available() and torch.cuda.device_count() == torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator().type == "cuda"
    torch.cuda.set_device(torch.device("cuda", 1))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
        start.record(), end.record()
    assert torch.cuda.current_device() == 1 and start.elapsed_time(end) >= 0
    assert not torch.autocast("cuda")._enabled                          # and without torch's warning
    with pytest.raises((AssertionError, RuntimeError)) as lacking:
        torch.cuda._lazy_init()
    assert re.fullmatch(r"tests/watch/test_devices.py:\d+: 'torch.cuda._lazy_init\(\)' needs a GPU, .*",
                        need_of_gpu(lacking.value))
    assert not any(map(need_of_gpu, (ValueError("another"), FutureWarning("of cuda"))))


def test_a_gradient_scaler_for_cuda_scales_here_too(heard):
    for scaler in (torch.amp.GradScaler(), torch.amp.GradScaler("cuda", init_scale=8.0)):
        assert scaler.is_enabled() and scaler.scale(torch.ones(1)) in (65536, 8)


def test_nothing_is_redirected_where_gpus_are_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with watching([Heard()]):
        assert not torch.cuda.is_available()


@pytest.mark.parametrize("shape, momentum", [((6, 3), 0.1), ((2, 3, 4, 4), None)])
def test_synchronized_batch_norm_is_torchs_batch_norm_on_one_rank(group, shape, momentum):
    torch.manual_seed(0)
    plain = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(3, momentum=momentum)
    with torch.no_grad():
        plain.weight.copy_(torch.rand(3))
    wrapped = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    first, second = (values.requires_grad_() for values in [torch.randn(shape)] * 2)
    second = first.detach().clone().requires_grad_()
    with watching([Heard()]):
        for _ in range(2):
            a, b = plain(first), wrapped(second)
            torch.testing.assert_close(b, a)
        (a * a.detach().cos()).sum().backward(), (b * b.detach().cos()).sum().backward()
        wrapped.eval()
        torch.testing.assert_close(wrapped(second), plain.eval()(first))
    torch.testing.assert_close(second.grad, first.grad)
    torch.testing.assert_close(wrapped.weight.grad, plain.weight.grad)
    torch.testing.assert_close(wrapped.state_dict(), plain.state_dict())


def test_the_function_that_a_script_spawns_is_called_as_this_worker(heard, worded):
    called = []
    assert torch.multiprocessing.spawn(lambda *given: called.append(given), ("a",), nprocs=2) is None
    context = torch.multiprocessing.start_processes(called.append, nprocs=2, join=False)
    assert called == [(1, "a"), 1] and context.join() and heard.names.count("instead") == 2
    with worded.error(SystemExit):
        torch.multiprocessing.spawn(called.append, nprocs=3)


def test_a_group_meets_where_the_launcher_has_it_meet(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with watching([Heard()]):
        monkeypatch.setenv("MASTER_PORT", "1")              # which no process of this user may open
        dist.init_process_group("nccl", init_method="tcp://192.0.2.1:1", rank=0, world_size=1)
        assert dist.get_backend() == "gloo"
        dist.barrier(device_ids=[0])
        dist.destroy_process_group()
