"""hvdscale-doctor resume: a script that is right when it is started again passes, and a planted fault is named."""
import functools
import json
import re

import pytest

from tests import guides
from tests.conftest import but_slow
from tests.factories import resume_scripts
from tests.factories.examinations import block

CHECKS = ["load", "files", "parameters", "optimizer", "schedule", "loss scale", "examples", "random numbers",
          "saved values", "printed", "updates"]
MARKED = ("--batch", "16", "--", "--batch", "{local}")
TO_ONE = ("--then", "1", *MARKED)
# script -> the check that fails, what it says, and the options beside
FAULTS = {
    "position": ("examples", "update 7 begins its epoch again: .* 32 of 128 are taken once more .* and 32 once", ()),
    "epoch": ("examples", "has the examples of the first epoch, of update 5: its order", ("--stop", "12")),
    "begins_anew": ("examples", "update 13 has the examples of update 1: epoch and position", ("--stop", "12")),
    "rest_left_out": ("examples", "update 7 begins the next epoch", ()),
    "order": ("examples", "RandomSampler draws the order from a generator that is not", ("--stop", "18")),
    "accumulation": ("examples", "saved after 1 pass of an update, whose gradients are lost", ()),
    "parameters": ("parameters", "12 parameters? of the model are those of the script's very beginning|6 param", ()),
    "head": ("parameters", "1 of the model's 6 parameters are not as they were saved", ()),
    "statistics": ("parameters", "batch-norm's running statistics are not", ()),
    "average": ("parameters", "an average of the parameters", ()),
    "one_rank": ("parameters", "rank 1 alone is not as it was saved", ()),
    "momentum": ("optimizer", "step, exp_avg and exp_avg_sq are zero or missing", ()),
    "steps": ("optimizer", "its count of steps is 0.0 in place of 6.0", ()),
    "dtype": ("optimizer", "momentum_buffer has another type: float32 before, now bfloat16", ()),
    "schedule": ("schedule", "the schedule begins again: update 8 has the rate", ()),
    "one_step": ("schedule", "the schedule is 1 update ahead", ()),
    "scale": ("loss scale", "update 7: it is 64.0, as at the script's start, in place of 128", ()),
    "draws": ("random numbers", r"beginning once more \(torch\)", ()),
    "python_draws": ("random numbers", r"beginning once more \(Python's random\)", ()),
    "peak": ("saved values", "has peak", ()),
    "printed": ("printed", "update 7 prints \"step 1\", and without the stop \"step 7\"", ()),
    "nothing_left": ("updates", "ends without an error and makes no update, where 8 were left", ()),
    "one_path": ("files", "rank 0 and 1 write to last.pt", ()),
    "old": ("load", "of update 9 was loaded, although at-12.pt, of update 12, was there", ("--stop", "12")),
}
RANKS_ALONE = {"one_rank", "one_path", "accumulation", "order"}     # what one worker does not have, or has otherwise
QUICK = {"position"}


@pytest.fixture(scope="module")
def resumed(examined):
    return functools.partial(examined, command="resume")


def failed(verdicts):
    return [check for check, verdict in verdicts.items() if verdict == "FAILED"]


@pytest.mark.parametrize("words", [(), pytest.param(TO_ONE, marks=pytest.mark.slow),
                                   pytest.param(("--how", "term", "--in-save"), marks=pytest.mark.slow)], ids=str)
def test_a_script_that_resumes_rightly_passes(resumed, words):
    code, out, err, verdicts = resumed("right", *words)
    assert (code, err) == (0, "") and list(verdicts) == CHECKS
    assert not {"FAILED", "warned"} & {*verdicts.values()}, out
    assert "saved by train.py:37, loaded by train.py:45" in " ".join(out.split())
    if not words:
        assert set(verdicts.values()) == {"passed"} and "bit for bit" in " ".join(out.split())


@pytest.mark.parametrize("name", but_slow(FAULTS, {*FAULTS} - QUICK))
def test_a_planted_fault_is_named_by_its_root(resumed, name):
    check, differs, words = FAULTS[name]
    code, out, _, verdicts = resumed(name, *words)
    assert code == 1 and failed(verdicts)[0] == check, out
    assert re.search(differs, block(out, check)) and "next move" in block(out, check), out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FAULTS} - RANKS_ALONE))
def test_a_planted_fault_is_named_at_another_number_of_workers(resumed, name):
    check, _, words = FAULTS[name]
    code, out, _, verdicts = resumed(name, *words, *TO_ONE)
    assert code == 1 and failed(verdicts)[0] == check, out


@pytest.mark.slow
@pytest.mark.parametrize("name, said", [("in_place", "killed in the middle of a file"),
                                        ("two_files", "what it loaded is of update 3 and 6")])
def test_what_a_kill_within_a_save_leaves_is_a_warning(resumed, name, said):
    code, out, _, verdicts = resumed(name, "--in-save")
    assert (code, verdicts["files"]) == (0, "warned") and said in block(out, "files")


@pytest.mark.slow
def test_a_script_with_an_option_of_its_own_is_told_of_it_and_passes_with_it(resumed):
    own = resume_scripts.changed([('parser.add_argument("--every"', 'parser.add_argument("--resume")\n'
                                   'parser.add_argument("--every"'), ('os.path.exists("last.pt")', "given.resume"),
                                  ('torch.load("last.pt"', "torch.load(given.resume")])
    code, out, _, verdicts = resumed(own)
    assert (code, verdicts["load"]) == (4, "warned") and "--again" in block(out, "load"), out
    code, out, _, verdicts = resumed(own, "--again", "--resume last.pt")
    assert (code, verdicts["load"]) == (0, "passed"), out


@pytest.mark.slow
def test_saves_by_epoch_move_the_stop(resumed):
    code, out, _, _ = resumed("right", "--updates", "4", "--", "--every", "8")
    assert code == 0 and "stopped after update 8 (the update of a checkpoint, in place of 6)" in " ".join(out.split())


@pytest.mark.slow
def test_a_checkpoint_that_was_there_before_is_left_out(doctor, tmp_path):
    (tmp_path / "train.py").write_text(resume_scripts.script("right"))
    doctor.losses(tmp_path, "train.py", "--epochs", "1", watched=False)
    said = doctor.run(tmp_path, "train.py", command="resume")
    assert said.code == 0 and "Left out of the copies: last.pt." in said.out, said.out


@pytest.mark.parametrize("changes, words, code, said", [
    ([("    save()\n", "    pass\n")], (), 4, "not seen: the load of a checkpoint"),
    ([('"new.pt", "last.pt"', '"new.pt", "../last.pt"')], (), 2, "/last.pt would be the same for all runs")])
def test_what_cannot_be_judged_is_said(resumed, changes, words, code, said):
    ended, out, err, _ = resumed(resume_scripts.changed(changes), "--updates", "2", *words)
    assert ended == code and said in " ".join((out + err).split()), (out, err)


def test_findings_for_machines_have_their_lines(resumed):
    code, out, _, _ = resumed("momentum", "--format", "json", "--checks", "optimizer,load")
    said = json.loads(out)
    assert (code, said["stopped_after"], said["held"]) == (1, 6, 6)
    assert [(one["check"], one["verdict"], one["where"]) for one in said["checks"]] == [
        ("load", "passed", ""), ("optimizer", "failed", "train.py:45")]


GUIDE = guides.read("hvdscale/doctor/resume/README.rst")
SHOWN = re.findall(r"^\.\. script: (\w+)(.*)\n\n::\n\n((?:    .*\n)+)", GUIDE, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("name, words, shown", SHOWN, ids=[name for name, *_ in SHOWN])
def test_the_guide_shows_what_the_doctor_prints(resumed, name, words, shown):
    _, out, *_ = resumed(name, *words.split())
    assert re.sub("^    ", "", shown, flags=re.M) in out
