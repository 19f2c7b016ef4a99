"""What the doctor says of scripts under each wrapper, with the real libraries: the fault of each check, and none.

    tools/test --room wrappers -m slow              after pip install '.[recorders]'; what is missing is skipped
    tools/test --room wrappers -m slow --renew      writes the rows of the guide's table anew
"""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, command_environment

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"
GUIDE = ROOT / "hvdscale/doctor/README.rst"
QUIET = {"PYTHONWARNINGS": "default", "HF_HUB_OFFLINE": "1"}
CHECKS = ("examples", "epochs", "gradient", "parameters", "learning rate", "schedule", "batch-norm", "random numbers",
          "evaluation")
# as the guide names it -> the script, and what it imports
WRAPPERS = {
    "DDP": ("ddp", ()), "accumulation": ("accumulating", ()), "two optimizers": ("gan", ()),
    "gradient scaler": ("scaler", ()), "LBFGS": ("lbfgs", ()), "torch.compile": ("compiled", ()),
    "ZeRO-1": ("zero", ()), "FSDP1": ("fsdp1", ()), "FSDP2": ("fsdp2", ()),
    "Horovod": ("horovod_optimizer", ("horovod",)),
    "Lightning Trainer": ("lightning_trainer", ("lightning",)), "Lightning Fabric": ("fabric", ("lightning",)),
    "accelerate": ("accelerated", ("accelerate",)), "HF Trainer": ("hf_trainer", ("transformers", "accelerate")),
}
WORDS = {"failed": "found", "warned": "warned", "passed": "missed"}         # any other verdict: unseen
WIDTHS = (19, 9, 7, 9, 11, 14, 9, 11, 15, 0)


def examined(script, *options, needs=()):
    """The doctor's findings on a script, by check."""
    for name in needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install '.[recorders]'")
    done = subprocess.run([sys.executable, "-c", "from hvdscale.cli.doctor import main; main()", "script", "--format",
                           "json", "--batch", "16", f"{script}.py", "--", "--batch", "{local}", *options], cwd=SCRIPTS,
                          capture_output=True, text=True, timeout=300, env=command_environment() | QUIET)
    assert done.stdout, done.stderr[-3000:]
    return {found["check"]: found for found in json.loads(done.stdout)["checks"]}


def row_of(name, cells):
    return "    " + "".join(cell.ljust(width) for cell, width in zip((name, *cells), WIDTHS)).rstrip()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_no_check_fails_of_a_script_without_a_fault(wrapper):
    script, needs = WRAPPERS[wrapper]
    found = examined(script, needs=needs)
    assert [name for name, each in found.items() if each["verdict"] == "failed"] == []


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_guide_says_which_faults_are_found(wrapper, request):
    script, needs = WRAPPERS[wrapper]
    row = row_of(wrapper, (WORDS.get(examined(script, "--fault", check, needs=needs)[check]["verdict"], "unseen")
                           for check in CHECKS))
    lines = GUIDE.read_text().splitlines()
    place = next(at for at, line in enumerate(lines) if line.startswith(f"    {wrapper}  "))
    if request.config.getoption("renew"):
        GUIDE.write_text("\n".join([*lines[:place], row, *lines[place + 1:], ""]))
    else:
        assert lines[place] == row


@pytest.mark.parametrize("wrapper, fault, verdict, said", [
    ("gradient scaler", "clipped_scaled", "failed", "were clipped while multiplied by 64.0"),
    ("accumulation", "kept_local", "failed", "each rank's optimizer took another gradient"),
    ("accumulation", "remainder", "warned", "has 1 pass in place of 2")])
def test_a_fault_that_only_a_wrapper_has_is_named(wrapper, fault, verdict, said):
    found = examined(WRAPPERS[wrapper][0], "--fault", fault)["gradient"]
    assert found["verdict"] == verdict and said in found["differs"]


def test_a_loss_divided_by_labels_before_their_shift_is_named():
    found = examined("gpt2", needs=("transformers", "accelerate"))["gradient"]
    assert found["verdict"] == "warned" and "labels before they are shifted" in found["cause"]
    assert "on one worker and on 2: divided by" in found["differs"]
