"""hvdscale-doctor script: honest scripts pass, a planted fault is found, and no script is changed by being watched."""
import re

import pytest

from tests.factories import ddp_scripts
from tests.factories.examinations import Doctor

CHECKS = ["examples", "epochs", "gradient", "parameters", "batch-norm", "learning rate", "schedule", "random numbers",
          "evaluation"]
MARKED = ("--batch", "16", "--", "--batch", "{local}")
FAULTS = {
    "no_sampler": ("examples", "all ranks took the same examples: 40 of 80 count", "RandomSampler, so every rank"),
    "no_set_epoch": ("epochs", r"the second epoch has the order of the first on 2 ranks \(0 and 1\)", "nothing tells"),
    "undivided": ("gradient", "the gradient is 2.00 times the mean over its 16 targets", "sums 2 passes"),
    "scaled_loss": ("gradient", "on 2 workers the gradient is 2.00 times what it is on one", "the loss is multiplied"),
    "clipping_first": ("gradient", r"the ranks clipped their local gradients by 0.\d+ and 0.\d+", "before the reduct"),
    "own_parameters": ("parameters", "the ranks start from different parameters", "another seed a rank"),
    "hasty_schedule": ("schedule", "2 times as fast: by 8 on 2 workers, by 4 on one", "once a worker"),
    "padded_evaluation": ("evaluation", r"1 example of 43 counted twice \(2.3%\)", "DistributedSampler repeats"),
}


@pytest.fixture(scope="module")
def doctor():
    with Doctor() as doctor:
        yield doctor


@pytest.fixture
def examined(doctor, tmp_path):
    """Examine a script by its name or text; gives the exit code, both outputs and the verdicts."""
    def examined(script, *words):
        text = ddp_scripts.script(script) if "\n" not in script else script
        (tmp_path / "train.py").write_text(text)
        said = doctor.run(tmp_path, "train.py", *words)
        verdicts = dict(re.findall(r"^  (\S.{13})  (passed|warned|FAILED|-)", said.out, re.M))
        assert (tmp_path / "train.py").read_text() == text
        assert {path.name for path in tmp_path.iterdir()} == {"train.py", ".out", ".err"}
        return said.code, said.out, said.err, {check.strip(): verdict for check, verdict in verdicts.items()}
    return examined


def block(out, check):
    """The details of a check, in one line."""
    return " ".join(re.search(rf"^(?:FAILED|warned): {check}\n((?:  .*\n)+)", out, re.M)[1].split())


@pytest.mark.parametrize("name", ["honest", "accumulating", "clipping"])
def test_an_honest_script_passes_every_check(examined, name):
    code, out, err, verdicts = examined(name, *MARKED)
    assert (code, err) == (0, "") and list(verdicts) == CHECKS
    assert {check for check, verdict in verdicts.items() if verdict != "passed"} == {"batch-norm", "random numbers"}
    assert "and each update has those it has on one worker" in " ".join(out.split())


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_no_other(examined, name):
    check, differs, cause = FAULTS[name]
    code, out, _, verdicts = examined(name, *MARKED)
    assert code == 1 and [one for one, verdict in verdicts.items() if verdict == "FAILED"] == [check], out
    said = block(out, check)
    assert re.search(differs, said) and cause in said and "next move" in said


def test_a_script_like_torchs_imagenet_example_has_warnings_alone(examined):
    code, out, _, verdicts = examined("imagenet", *MARKED)
    assert code == 0 and {check for check, verdict in verdicts.items() if verdict == "warned"} == {
        "batch-norm", "random numbers"}, out
    assert "over 16 examples on one worker, and over 8 on each of 2" in block(out, "batch-norm")
    assert "on all ranks (loader workers)" in block(out, "random numbers")
    out = " ".join(out.split())
    assert "There it wrote checkpoint.pth.tar." in out and "the process group ran over Gloo" in out


def test_a_script_like_torchs_mingpt_example_is_told_of_its_evaluation(examined):
    code, out, _, verdicts = examined("mingpt", *MARKED)
    assert code == 1 and [check for check, verdict in verdicts.items() if verdict == "FAILED"] == ["evaluation"], out
    assert "rank 0 took 50 of 100 examples (50%), and no call combined" in block(out, "evaluation")
    assert "have one dropout mask" in block(out, "random numbers")


def test_watching_changes_no_bit_of_the_losses(doctor, tmp_path):
    (tmp_path / "train.py").write_text(ddp_scripts.script("mingpt").replace(
        "self.optimizer.step()\n", "self.optimizer.step()\n            print('loss', loss.item())\n"))
    words = "train.py", "--batch", "8"
    watched = doctor.losses(tmp_path, *words, watched=True)
    plain = doctor.losses(tmp_path, *words, watched=False)
    assert len(watched) == 4 and watched == plain[:4] and len(set(plain)) == len(plain)
