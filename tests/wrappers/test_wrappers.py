"""What the doctor says of scripts under each wrapper, with the real libraries: the fault of each check, and none.

    tools/test --room wrappers -m slow              after pip install '.[recorders]'; what is missing is skipped
    tools/test --room wrappers -m slow --renew      writes the rows of the guide's table anew
"""
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdscale.log.reader import read_log
from hvdscale.log.schema import rank_column
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
NAPS = {"data": 8, "forward": 1, "backward": 1, "optimizer": 1}             # in an update of 8 examples
WIDTHS = (19, 9, 7, 9, 11, 14, 9, 11, 15, 0)


# of what is stopped and started again, and the checks that fail of it with a fault
RESUMED = {"fsdp2": ((), {"position": "examples", "optimizer": "optimizer"}),
           "horovod": (("horovod",), {"position": "examples", "optimizer": "optimizer"}),
           "stateful": (("torchdata",), {"position": "examples", "optimizer": "optimizer"}),
           "lightning": (("lightning",), {"optimizer": "optimizer"}),
           "accelerate": (("accelerate",), {"position": "examples", "optimizer": "optimizer"}),
           "hf": (("transformers", "accelerate"), {"position": "examples"})}
TO_ONE = ("--then", "1", "--batch", "16")          # in place of two, each of which has a part of the tensors


def command_on(script, needs, name, *options, words):
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install '.[recorders]'")
    done = subprocess.run([sys.executable, "-c", f"from hvdscale.cli.{name} import main; main()", *options,
                           f"{script}.py", "--", *words], cwd=SCRIPTS, capture_output=True, text=True, timeout=600,
                          env=command_environment() | QUIET)
    assert done.stdout, done.stderr[-3000:]
    return done


def examined(script, *options, needs=(), command=("script", "--batch", "16"), batch="{local}", of="checks"):
    """The doctor's findings on a script, by check; or what else it has under ``of``."""
    done = command_on(script, needs, "doctor", *command, "--format", "json", words=("--batch", batch, *options))
    found = json.loads(done.stdout)[of]
    return {one["check"]: one for one in found} if of == "checks" else found


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
    (remark,) = examined("gpt2", needs=("transformers", "accelerate"), of="remarks")
    assert "labels before they are shifted" in remark


@pytest.mark.parametrize("name, fault, check, then", [
    (name, fault, check, then) for name, (_, faults) in RESUMED.items() for then in ((), TO_ONE)[:1 + (name == "fsdp2")]
    for fault, check in ({"": ""} | faults).items()])
def test_what_is_not_restored_is_named_with_each_library(name, fault, check, then):
    found = examined(f"resume_{name}", "--fault", fault, needs=RESUMED[name][0], command=("resume", *then),
                     batch="{local}" if then else "8")
    assert [one for one, each in found.items() if each["verdict"] == "failed"][:1] == [check] * bool(check)
    assert "unseen" not in {found[one]["verdict"] for one in ("load", "parameters", "optimizer", "examples")}


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2", "Horovod", "Lightning Trainer", "accelerate", "HF Trainer"])
def test_each_part_of_an_update_grows_by_what_sleeps_in_it(wrapper, tmp_path):
    """On an idle machine, within a tenth of the naps; Lightning's loop calls for the passes by a closure."""
    script, needs = WRAPPERS[wrapper]
    naps = {part: times for part, times in NAPS.items() if (wrapper, part) != ("HF Trainer", "data")}   # it has a list
    if wrapper == "Horovod":
        naps["optimizer"] = 2                   # its step calls torch's, whose hooks are called then, too
    found = {}
    for fault in ((), ("--fault", "naps", "--slept", str(tmp_path))):
        out = tmp_path / f"{len(fault)}"
        done = command_on(script, needs, "scale", "script", "--workers", "2", "--batch", "8", "--warm-up", "2",
                          "--updates", "14", "--launcher", "horovodrun" if wrapper == "Horovod" else "torchrun",
                          "--out", str(out), words=("--batch", "{local}", *fault))
        assert done.returncode == 0, done.stdout + done.stderr
        with read_log(out / "w2-r1.h5") as log:
            found[fault] = {part: np.median([log.steps[rank_column(rank, part)] for rank in (0, 1)]) for part in naps}
    without, slept = found.values()
    lasted = {part: np.median([np.loadtxt(file)[:14 * times].reshape(-1, times).sum(1)
                               for file in tmp_path.glob(f"{part}.*")]) for part, times in naps.items()}
    assert {part: slept[part] - without[part] for part in naps} == pytest.approx(lasted, rel=0.1)
