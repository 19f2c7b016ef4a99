"""hvdscale-doctor resume: a script that is right when it is started again passes, and a planted fault is named."""
import functools
import json
import re

import pytest

from tests.conftest import GOLDEN, but_slow
from tests.factories import resume_scripts
from tests.factories.examinations import block

CHECKS = ["load", "files", "parameters", "optimizer", "schedule", "loss scale", "examples", "random numbers",
          "saved values", "printed", "updates"]
TO_ONE = ("--then", "1", "--batch", "16", "--", "--batch", "{local}")
PAIRS, IN_SAVE = resume_scripts.PAIRS, {"in_place", "two_files"}
# what one worker does not have, or no two counts of workers have alike
BY_RANKS = {"one_rank", "optimizer_of_one_rank", "one_path", "accumulation", "attribute", "own_average",
            "one_rank_draws"}


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
    assert "saved by train.py:44, loaded by train.py:50" in " ".join(out.split())
    if not words:
        assert set(verdicts.values()) == {"passed"} and "bit for bit" in " ".join(out.split())


@pytest.mark.parametrize("name", but_slow(PAIRS, {*PAIRS} - {"position"}))
def test_a_planted_fault_is_named_by_its_root(resumed, name, then=()):
    pair = PAIRS[name]
    check = pair["check"]
    code, out, _, verdicts = resumed(name, *pair.get("words", ()), *then)
    expected = (0, "warned", []) if name in IN_SAVE else (1, "FAILED", [check])
    assert (code, verdicts[check], failed(verdicts)[:1]) == expected, out
    assert "next move" in block(out, check) and (then or re.search(pair["differs"], block(out, check))), out


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*PAIRS} - BY_RANKS - IN_SAVE))
def test_a_planted_fault_is_named_at_another_number_of_workers(resumed, name):
    test_a_planted_fault_is_named_by_its_root(resumed, name, TO_ONE)


@pytest.mark.slow
@pytest.mark.parametrize("then", [(), TO_ONE], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_the_right_twin_passes(resumed, name, then):
    code, out, _, verdicts = resumed(f"right_{name}", *PAIRS[name].get("words", ()), *then)
    assert code == 0 and not {"FAILED", "warned"} & {*verdicts.values()}, out


@pytest.mark.slow
def test_a_script_with_an_option_of_its_own_is_told_of_it_and_passes_with_it(resumed):
    own = resume_scripts.script("right").replace("given = parser", 'parser.add_argument("--resume")\ngiven = parser')
    own = own.replace('os.path.exists("last.pt")', "given.resume").replace('load("last.pt"', "load(given.resume")
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
    (("    save()\n", "    pass\n"), (), 4, "not seen: the load of a checkpoint"),
    (('"new.pt", "last.pt"', '"new.pt", "../last.pt"'), (), 2, "/last.pt would be the same for all runs"),
    (('exists("last.pt")', 'exists("none.pt")'), ("--again", "--epochs 3"), 1, "it was started with --epochs 3")])
def test_what_cannot_be_judged_is_said(resumed, changes, words, code, said):
    ended, out, err, _ = resumed(resume_scripts.script("right").replace(*changes), "--updates", "2", *words)
    assert ended == code and said in " ".join((out + err).split()), (out, err)


def test_findings_for_machines_have_their_lines(resumed):
    code, out, _, _ = resumed("momentum", "--format", "json", "--checks", "optimizer,load")
    said = json.loads(out)
    assert (code, said["stopped_after"], said["held"]) == (1, 6, 6)
    assert [(one["check"], one["verdict"], one["where"]) for one in said["checks"]] == [
        ("load", "passed", ""), ("optimizer", "failed", "train.py:51")]


SHOWN = re.findall(r"^\$ (.*)\n((?:.+\n)+)", (GOLDEN / "doctor_resume.txt").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.parametrize("typed, shown", SHOWN, ids=[typed for typed, _ in SHOWN])
def test_the_doctor_prints_the_text_kept(resumed, typed, shown):
    assert shown in resumed(*typed.split())[1]
