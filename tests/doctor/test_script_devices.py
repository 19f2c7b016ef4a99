"""hvdscale-doctor script on a machine without GPUs: scripts that ask for CUDA, and that start their own workers."""
import re

import pytest
import torch

from tests.factories import gpu_scripts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is redirected")
OWN_WORKERS = ("spawning", "no_sampler", "by_gpu")
FAULTS = {"no_sampler": ("examples", "all ranks took the same examples: 80 of 160 count"),
          "not_averaged": ("gradient", "each rank's optimizer took another gradient"),
          "clipped_while_scaled": ("gradient", "clipped while multiplied by 65,500")}


@pytest.mark.parametrize("name", [*gpu_scripts.RIGHT, *gpu_scripts.CHANGES])
def test_a_script_for_gpus_is_judged_without_any(examined, name):
    text, words = gpu_scripts.script(name)
    code, out, err, _ = examined(text, "--batch", "32", "--", *words)
    out = " ".join(out.split())
    failed, first = re.findall(r"FAILED: (\w+) what differs", out), re.split(" examples (?:passed|FAILED) ", out)[0]
    assert err == "" and "torch sees no GPU here, so what the script asks of CUDA ran on the CPU (first torch" in first
    assert ("The workers that the script starts itself (train.py:" in first) == (name in OWN_WORKERS)
    if name not in FAULTS:
        assert code == 0 and "warned" not in out and not failed, out
        assert "each update has those it has on one worker" in out and "the mean over all 32 targets" in out
        return
    check, differs = FAULTS[name]
    assert code == 1 and differs in out and failed[0] == check, out


@pytest.mark.parametrize("call", ["graph = torch.cuda.CUDAGraph()", "made = torch.cuda.FloatTensor(3)"])
def test_what_only_a_gpu_can_do_is_a_line_that_names_the_call(examined, call, worded):
    code, out, err, _ = examined(f"import torch\ntorch.zeros(3, device='cuda')\n{call}\n")
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    worded(err, about="needs a")


def test_a_number_of_workers_of_its_own_is_refused_or_an_argument(examined, worded):
    text = gpu_scripts.SPAWNING.replace("= torch.cuda.device_count()", "= int(sys.argv[2])")
    code, out, err, _ = examined(text, "--batch", "32", "--", "{local}", "2")
    worded(err, about="it starts")
    assert (code, out) == (1, "")
    assert examined(text, "--batch", "32", "--", "{local}", "{workers}")[0] == 0


def test_a_script_that_asks_for_no_gpu_is_not_told_of_any(examined):
    assert "GPU" not in examined("honest")[1]


def test_processes_that_a_script_starts_one_by_one_are_named_where_none_trains(examined, worded):
    text = "import multiprocessing\n\n\ndef run(rank):\n    pass\n\n\nfor rank in range(2):\n" \
        "    process = multiprocessing.get_context('fork').Process(target=run, args=(rank,))\n    process.start()\n"
    code, out, err, _ = examined(text)
    worded(err, about="made no")
    assert (code, out) == (1, "")
