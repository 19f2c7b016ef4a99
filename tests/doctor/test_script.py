"""hvdscale-doctor script: honest scripts pass, a planted fault is found, and no script is changed by being watched."""
import json
import os
import re
import shutil

import pytest

from hvdscale.doctor.script.examine import files_of
from hvdscale.doctor.script.runs import make_workplace
from hvdscale.errors import UsageError
from tests import guides
from tests.conftest import GOLDEN, but_slow
from tests.doctor import pairs, test_resume
from tests.factories import ddp_scripts
from tests.factories.examinations import block

CHECKS = ["examples", "epochs", "gradient", "update", "parameters", "batch-norm", "learning rate", "schedule",
          "random numbers", "evaluation"]
MARKED = ("--batch", "16", "--", "--batch", "{local}")
FAULTS = {
    "no_sampler": ("examples", "all ranks took the same examples: 40 of 80 count", "RandomSampler, so every rank"),
    "no_set_epoch": ("epochs", r"the second epoch has the order of the first on 2 ranks \(0 and 1\)", "nothing sets"),
    "undivided": ("gradient", "the gradient is 2.00 times the mean over its 16 targets", "sums 2 passes"),
    "scaled_loss": ("gradient", "2.00 times the mean .* on 2 workers, and 1.000? times on one", "multiplied"),
    "clipping_first": ("gradient", r"the ranks clipped their local gradients by 0.\d+ and 0.\d+", "before the reduct"),
    "own_parameters": ("parameters", "the ranks start from different parameters", "another seed a rank"),
    "hasty_schedule": ("schedule", "2 times as fast: by 8 on 2 workers, by 4 on one", "once a worker"),
    "padded_evaluation": ("evaluation", r"1 example of 43 counted twice \(2.3%\)", "DistributedSampler repeats"),
    "last_pass_local": ("gradient", "each rank's optimizer took another gradient", "of 2 passes an update, 2 stayed"),
    "summed": ("gradient", "the gradient is 2.00 times the mean", "the gradients of the ranks are summed"),
    "not_averaged": ("gradient", "each rank's optimizer took another gradient", "nothing averages"),
    "unequal": ("gradient", "the ranks have 10 and 6 targets, and the mean of their", "its own number of targets"),
    "masked": ("gradient", "the ranks have 8 and 5 targets", "its own number of targets"),
    "summed_loss": ("gradient", "8.00 times the mean .* on 2 workers, and 16.0 times on one", "mean loss, undivided"),
    "rate_by_rank": ("learning rate", "different rates, 0.100 and 0.200", "computed by rank"),
    "own_share": ("evaluation", r"rank 0 took 22 of 43 examples \(51%\)", "the metric of its own share"),
    "dropped": ("evaluation", "1 example of 43 left out", "drop_last"),
    "contrasting": ("gradient", "of the same examples and parameters, 2 workers have another", "contrastive"),
    "scaled_penalty": ("gradient", "of the same examples and parameters, 2 workers have another", "another term of it"),
    "stream": ("examples", "all ranks took the same examples", "IterableDataset yields the same"),
    "same_replacement": ("examples", "all ranks took the same examples", "WeightedRandomSampler draws the same"),
    "no_loader": ("examples", "all ranks computed the same gradients", "seeds alike"),
    "scaled_closure": ("gradient", "2.00 times the mean .* on 2 workers, and 1.00 times on one", "multiplied"),
    "scaled_evaluations": ("gradient", "2.00 times the mean .* on 2 workers, and 1.00 times on one", "multiplied"),
    "own_loss_scaled": ("gradient", "2 workers have 0.500 times the gradient of one", "take the mean loss, undivided"),
    "own_loss_and_dropout": ("gradient", "held still: update 1: .* 0.500 times the gradient of one", "loss, undivided"),
    "own_loss_summed": ("gradient", "2 workers have 2.00 times the gradient of one", "of the ranks are summed"),
    "clipped_in_between": ("gradient", "clipped 2 times during the 2 passes", "clipping comes after each pass"),
    "clipped_scaled": ("gradient", "clipped while multiplied by 64.0", "and scaler.unscale_(optimizer)"),
    "head_replaced": ("gradient", "each rank's optimizer took another", "2.weight, 2.bias of 4 parameters are not"),
    "second_not_averaged": ("gradient", r"optimizer 2 of 2 \(Adam\): .* another gradient", "changed after that"),
    "split_by_rank": ("examples", "11 of rank 0's 20 validation examples are in rank 1's training set", "random_split"),
    "shuffled_stream": ("examples", "9 of 64 examples were taken by another rank", "not shared out by rank"),
    "own_sampler_stays": ("epochs", "the second epoch has the order of the first", "nothing sets its epoch"),
    "sampler_by_rank": ("examples", r"2\d are taken by two ranks, and 2\d by none", "samplers have different seeds"),
    "shared_twice": ("examples", "50 of rank 0's 50 are not in another", "by rank, and then by DistributedSampler"),
    "sliced_twice": ("epochs", "it has 100 examples on one worker, and 50 on 2 workers", "by rank, and then by the"),
    "own_state": ("parameters", "the same at first", "the optimizers' states or settings differ by rank"),
    "one_rank_writes": ("parameters", "the same at first", "something writes parameters on some ranks only"),
    "summed_in_step": ("gradient", "update 1 is 2.00 times that of one worker", "its step, and takes their sum"),
    "summed_steps": ("parameters", "before update 3 they are 2.00 times the mean", "of the ranks are summed"),
    "averaged_on_one": ("evaluation", "those that are trained do not", "kept or loaded on some ranks only"),
    "clipped_by_hand": ("gradient", "so that their gradients have one norm", "as clipping by hand does"),
    "reduced_again": ("gradient", "1.50 times the mean", "is reduced after each of them"),
    "own_count": ("gradient", r"count 0.\d+ and 0.\d+ in that of one worker", "its own number of targets, tokens"),
    "not_awaited": ("gradient", "took another gradient", "all_reduce is called, but does not change them"),
    "one_rank": ("examples", "all ranks took the same examples", "the same rank on several"),
    "own_statistics": ("evaluation", "each rank evaluates another model", "nothing broadcasts them"),
}
WARNINGS = {
    "dropout": ("random numbers", "have one dropout mask", "every rank has the same seed"),
    "batch_norm": ("batch-norm", "over 16 examples on one worker, and over 8 on each of 2", "smaller local ones"),
    "scaled_rate": ("learning rate", "2.00 times as large on 2 workers, with the same global batch", "scaled by the"),
    "length_of_loader": ("schedule", "follow another course", "the length of a rank's loader"),
    "own_order": ("examples", "each rank goes through all 101 examples", "knows nothing of the other ranks"),
    "weighted": ("epochs", "the ranks have 6 and 9 batches", "each has 51 examples, in batches of other sizes"),
    "remainder": ("gradient", "update 3 has 1 pass in place of 3, .* 0.333 times the mean", "do not divide by 3"),
    "hasty_but_flat": ("schedule", "by 4 on one worker and by 8 on 2; the rates are the same", "in the same steps"),
    "noise_alike": ("random numbers", "batch and model all ranks draw the same numbers \\(torch\\)", "same seed"),
    "queue": ("gradient", "update 2: 2 workers have another gradient than one, though update 1", "keeps from earlier"),
    "left_head": ("parameters", "no optimizer has 2.bias, 2.weight", "the optimizer was made before modules"),
    "skipped": ("examples", "the ranks read 1 and 2 batches for update 3", "leaves batches out by itself"),
    "workers_alike": ("random numbers", r"\(torch, in loader workers\)", "by the number of the loader worker alone"),
    "own_teacher": ("parameters", "or frozen parameters differ by rank: Linear.weight", "a teacher that is copied"),
    "hooked": ("gradient", "is no weighted sum of the ranks' local gradients", "a communication hook changes it"),
    "own_files": ("examples", "101 of the 202 examples that the ranks hold are not", "right if each rank is meant"),
    "gathered": ("evaluation", "1 example of 43 counted twice .* unless the script drops", "DistributedSampler"),
}
SOUND = ("honest", "accumulating", "clipping", "mixed_precision", "ahead", "next", "with_replacement",
         "evaluated_on_one", "added_losses", "closure", "several_evaluations", "own_loss", "two_optimizers", "split",
         "shared_stream", "own_sampler", "own_masks", "unused", "noise", "peeking", "listed", "filled_up",
         "averaged_in_step", "averaged", "whole_count")
# slow: another one of SOUND, FAULTS or WARNINGS is close to it
LIKE_OTHERS = {"ahead", "listed", "peeking", "with_replacement", "added_losses", "several_evaluations", "own_files",
               "noise", "filled_up", "scaled_closure", "scaled_evaluations", "masked", "last_pass_local",
               "own_loss_summed", "same_replacement", "not_awaited", "one_rank", "hooked", "second_not_averaged",
               "clipped_scaled", "scaled_penalty"}
ERRORS = {
    "raising": "train.py on 2 workers, rank 1, before its first update: ValueError: of rank 1",
    "exiting": "train.py on 1 worker, rank 0, before its first update: it ended with exit code 3",
    "idle": "train.py on 1 worker made no update before it ended: no torch.optim.Optimizer made a step",
    "stepping_on_one": "train.py on 2 workers made no update on rank 1 (rank 0 made 4, rank 1 made 0); only steps of",
    "spawning": "train.py:15: it starts 1 worker, and this run has 2; take the number from",
    "hanging": "hangs before its first update: rank 0 waits at train.py:30 and rank 1 waits at train.py:33; a rank",
    "dying": "rank 1, before its first update: its process died: it was killed, was out of memory, or called os._exit",
    "leaving": "Another rank had ended: a rank makes a call that another one leaves out, as where only some ranks",
    "unlike": "the ranks' collectives have different sizes: a rank makes a call that another one leaves out",
}


@pytest.mark.parametrize("name", but_slow(SOUND, LIKE_OTHERS))
def test_an_honest_script_raises_no_alarm(examined, name, worded):
    code, out, err, verdicts = examined(name, *MARKED)
    assert (code, err) == (0, "") and list(verdicts) == CHECKS
    assert not {"FAILED", "warned"} & {*verdicts.values()}, out
    if name in SOUND[:3]:
        assert {check for check, verdict in verdicts.items() if verdict != "passed"} == {"batch-norm", "random numbers"}
        worded(" ".join(out.split()), about="and each")


@pytest.mark.parametrize("name", but_slow(FAULTS, LIKE_OTHERS))
def test_a_planted_fault_is_found_and_no_other(examined, name):
    check, differs, cause = FAULTS[name]
    code, out, _, verdicts = examined(name, *MARKED)
    drift = ["parameters"] if "see the check" in out else []        # what follows from it
    assert code == 1 and [one for one, verdict in verdicts.items() if verdict == "FAILED" and one not in drift] == [
        check], out
    said = block(out, check)
    assert re.search(differs, said) and cause in said and "next move" in said and " where train.py:" in said


UNSEEN = {
    "zero": ("the training gradient", "the gradient is zero in every update", [
        ("cross_entropy(ddp(inputs), targets)", "cross_entropy(ddp(inputs)[:, :1], targets * 0)")]),
    "not_finite": ("the training gradient", "update 1: a gradient is not finite", [
        ("cross_entropy(ddp(inputs), targets)", "cross_entropy(ddp(inputs), targets) * float('inf')")]),
    "by_hand": ("the training examples, the training gradient", "torch.autograd.grad returns are not followed", [
        ("    loss.backward()\n", "    for one, its in zip(ddp.parameters(), torch.autograd.grad(loss, "
         "ddp.parameters())):\n        dist.all_reduce(its)\n        one.grad = its / workers\n")]),
    "no_loader": ("the training examples", "from no DataLoader", [
        ("for inputs, targets in loader:\n", "for _ in range(9):\n        at = torch.randint(101, (given.batch,), "
         "generator=own)\n        inputs, targets = train[at]\n"),
        ("sampler = Dist", "own = torch.Generator().manual_seed(rank)\nsampler = Dist")]),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_training_that_was_not_seen_is_not_acquitted(examined, name):
    what, why, changes = UNSEEN[name]
    code, out, _, verdicts = examined(ddp_scripts.changed(changes), *MARKED)
    assert code == 4 and out.startswith(f"not seen: {what} ("), out
    assert why in " ".join(out.split()) and "unseen" in verdicts.values()


def test_examples_of_no_loader_are_seen_where_the_gradient_is_that_of_one_worker(examined, worded):
    shared = ddp_scripts.changed([("for inputs, targets in loader:\n", "for at in range(6):\n"
                                   "        inputs, targets = (each[16 * at:16 * at + 16][rank::workers]\n"
                                   "                           for each in train.tensors)\n")])
    code, out, _, verdicts = examined(shared, *MARKED)
    worded(" ".join(out.split()), about="it is")
    assert (code, verdicts["examples"]) == (0, "passed")


def test_what_a_script_writes_in_its_copy_is_named_and_gone(examined):
    step = "    loss.backward()\n"
    text = ddp_scripts.script("honest").replace(step, f'{step}    open(f"kept{{rank}}", "w").write("x")\n')
    _, out, *_ = examined(text, *MARKED)
    assert "ran in a copy of this folder, which is removed. There it wrote kept0, kept1." in " ".join(out.split())


def test_a_script_may_import_from_the_folders_above(tmp_path):
    for name in ("top/package/__init__.py", "top/package/jobs/train.py", "top/other.py", "top/data/kept.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    folder = make_workplace(tmp_path / "top/package/jobs", tmp_path / "copy").folder
    assert (folder / "train.py").is_file() and (folder / "../__init__.py").is_symlink()
    assert (folder / "../../other.py").is_symlink() and not (folder / "../../data").exists()


def test_a_folder_too_large_to_copy_is_run_in_and_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("hvdscale.doctor.script.runs.LARGEST", 1)
    (tmp_path / "data").write_text("large")
    place = make_workplace(tmp_path, tmp_path / "copy")
    (tmp_path / "kept").write_text("x")
    assert (place.copied, place.folder, place.written()) == (False, tmp_path, ["kept"])
    said = files_of(False, ["kept"], [])
    assert said == ["The script ran in this folder itself, which has more than 512 MiB to copy.",
                    "The script wrote: kept."]


def test_a_copy_within_the_folder_leaves_itself_out(tmp_path):
    (tmp_path / "train.py").write_text("x")
    (tmp_path / "hvdscale-doctor-1" / "records").mkdir(parents=True)
    folder = make_workplace(tmp_path, tmp_path / "hvdscale-doctor-1" / "1" / "folder").folder
    assert os.listdir(folder) == ["train.py"]


def test_what_cannot_be_copied_is_an_error_in_a_line(tmp_path, monkeypatch):
    def vanished(*_, **__):
        raise shutil.Error([("data/part-3", "copy/part-3", "No such file or directory")])
    monkeypatch.setattr("shutil.copytree", vanished)
    with pytest.raises(UsageError, match="^data/part-3: cannot be copied: No such file or directory; run"):
        make_workplace(tmp_path, tmp_path / "copy")


SHOWN = re.findall(r"^\$ (.*)\n((?:.+\n)+)", (GOLDEN / "doctor_script.txt").read_text(), re.M)


@pytest.mark.parametrize("name, shown", SHOWN, ids=[name for name, _ in SHOWN])
def test_the_doctor_prints_the_text_kept(examined, name, shown):
    assert shown in examined(name, *MARKED)[1]


@pytest.mark.parametrize("path, checks, shown", [
    ("", CHECKS, SHOWN), ("resume/", test_resume.CHECKS, test_resume.SHOWN)])
def test_the_guide_has_causes_of_each_check_and_an_excerpt(path, checks, shown):
    guide = guides.read(f"hvdscale/doctor/{path}README.rst").replace("\n    ", "\n")
    causes = re.findall(r"^(\w[\w -]*?)  +\w", guide.partition("\nfinding  ")[2].partition("\n\n")[0], re.M)
    assert list(dict.fromkeys(causes)) == checks and any(text in guide for _, text in shown)


@pytest.mark.parametrize("name", but_slow(WARNINGS, LIKE_OTHERS))
def test_what_may_be_intended_is_a_warning(examined, name):
    check, differs, cause = WARNINGS[name]
    code, out, _, verdicts = examined(name, *MARKED)
    assert code == 0 and [one for one, verdict in verdicts.items() if verdict == "warned"] == [check], out
    assert re.search(differs, block(out, check)) and cause in block(out, check)


@pytest.mark.parametrize("name, said", [
    ("other_denominator", "the loss of update 1 is divided by 12, where it has 9 targets"),
    ("local_steps", "before update 3 (local SGD): by 1.00 times the mean of the ranks' changes, as on one worker")])
def test_what_is_no_fault_of_several_workers_is_said_and_passes(examined, name, said):
    code, out, _, verdicts = examined(name, *MARKED)
    assert code == 0 and not {"warned", "FAILED"} & {*verdicts.values()} and said in " ".join(out.split())


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_the_script_is_its_traceback_and_one_line(examined, name):
    code, out, err, _ = examined(name, *MARKED[:2], "--seconds", "5" if name == "hanging" else "60", *MARKED[2:])
    *before, last = err.strip().splitlines()
    assert (code, out) == (1, "") and last.startswith("Error: ") and ERRORS[name] in last
    if name == "raising":
        assert before[0].startswith("Traceback") and before[-1] == "ValueError: of rank 1" and "hvdscale" not in err


def test_without_a_marked_batch_only_what_holds_at_any_is_checked(examined):
    code, out, _, verdicts = examined("honest")
    out = " ".join(out.split())
    assert code == 0 and "each run with its own batch" in out
    assert "whether both runs make the same updates: that needs one global batch" in out
    assert "the learning rate is the same on 2 workers as on one" in out


@pytest.mark.parametrize("words, said", [
    (["--batch", "16"], "mark where the local batch is"), (["--", "--batch", "{local}"], "give that by --batch"),
    (["--batch", "15", "--", "--batch", "{local}"], "--batch 15 does not divide by 2 workers")])
def test_a_batch_and_its_place_are_given_together(examined, words, said):
    code, out, err, _ = examined("honest", *words)
    assert (code, out) == (2, "") and said in err


def test_of_a_script_the_exit_code_follows_from_the_asked_checks(examined):
    code, out, err, _ = examined("undivided", "--format", "json", "--checks", "gradient,examples", *MARKED)
    said = json.loads(out)
    assert (code, said["exit_code"], err) == (1, 1, "") and said["global_batch"] == 16
    assert [(one["check"], one["verdict"], one["where"]) for one in said["checks"]] == [
        ("examples", "passed", ""), ("gradient", "failed", "train.py:34")]
    code, out, _, _ = examined("undivided", "--checks", "examples", *MARKED)
    assert code == 0 and "16 in both runs: 1 check over " in " ".join(out.split()) and "gradient" not in out


@pytest.mark.parametrize("name, words, code, said", [
    ("raising", ["--format", "junit"], 1, "ValueError: of rank 1"),
    ("honest", ["--format", "json", "--checks", "losses"], 2, "there is no check 'losses'; choose from examples, ep")])
def test_an_error_leaves_stdout_empty_for_machines(examined, name, words, code, said):
    ended, out, err, _ = examined(name, *words, *MARKED)
    assert (ended, out) == (code, "") and said in err


def test_a_script_like_torchs_imagenet_example_has_warnings_alone(examined):
    unseeded = ddp_scripts.script("imagenet")
    code, out, _, verdicts = examined(unseeded, *MARKED)
    assert verdicts["random numbers"] == "passed"       # each rank has its own seed, as in a process of its own
    code, out, _, verdicts = examined(unseeded.replace(
        "    rank, world_size =", "    torch.manual_seed(0)\n    rank, world_size ="), *MARKED)
    assert code == 0 and {check for check, verdict in verdicts.items() if verdict == "warned"} == {
        "batch-norm", "random numbers"}, out
    assert "over 16 examples on one worker, and over 8 on each of 2" in block(out, "batch-norm")
    assert "on all ranks (torch, in loader workers)" in block(out, "random numbers")
    out = " ".join(out.split())
    assert "There it wrote checkpoint.pth.tar." in out and "the process group ran over Gloo" in out


def test_a_script_like_torchs_mingpt_example_is_told_of_its_evaluation(examined, worded):
    code, out, _, verdicts = examined("mingpt", *MARKED)
    assert code == 1 and [check for check, verdict in verdicts.items() if verdict == "FAILED"] == ["evaluation"], out
    worded(block(out, "evaluation"), about="and no")
    worded(block(out, "random numbers"), about="have one")


HOROVOD = """
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()
torch.manual_seed(0)
train = TensorDataset(torch.randn(101, 12), torch.randint(3, (101,)))
model = nn.Linear(12, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sampler = DistributedSampler(train, hvd.size(), hvd.rank())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(train, int(__import__("sys").argv[-1]), sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    val = TensorDataset(*train[:40])
    right = sum(len(targets) for _, targets in DataLoader(val, 16, sampler=DistributedSampler(
        val, hvd.size(), hvd.rank())))
    print(hvd.allreduce(torch.tensor(float(right)), op=hvd.Sum))
"""
STEP = "        optimizer.step()\n"
EARLY = STEP, f"        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n{STEP}"


def test_a_script_with_horovod_runs_without_its_launcher(examined, worded):
    code, out, _, verdicts = examined(HOROVOD, *MARKED)
    assert code == 0 and not {"FAILED", "warned"} & {*verdicts.values()}, out
    assert [verdicts[check] for check in ("examples", "gradient", "parameters", "evaluation")] == ["passed"] * 4, out
    code, out, _, verdicts = examined(HOROVOD.replace(*EARLY), *MARKED)
    worded(block(out, "gradient"), about="clipped before")
    assert code == 1


def test_ranks_that_seed_nothing_start_apart(examined, worded):
    unseeded = ddp_scripts.changed([("torch.manual_seed(0)\n", "own = torch.Generator().manual_seed(0)\n"), *(
        (f"randn({size}, 12)", f"randn({size}, 12, generator=own)") for size in (101, 43))], of="summed")
    code, out, _, verdicts = examined(unseeded, *MARKED)
    worded(block(out, "parameters"), about="the ranks")
    assert code == 1


def test_watching_changes_no_bit_of_the_losses(doctor, tmp_path):
    (tmp_path / "train.py").write_text(ddp_scripts.script("mingpt").replace(
        "self.optimizer.step()\n", "self.optimizer.step()\n            print('loss', loss.item())\n"))
    words = "train.py", "--batch", "8"
    watched = doctor.losses(tmp_path, *words, watched=True)
    plain = doctor.losses(tmp_path, *words, watched=False)
    assert len(watched) == 4 and watched == plain[:4] and len(set(plain)) == len(plain)


SHARDED = [("ddp = DistributedDataParallel(model)", "from torch.distributed.fsdp import fully_shard\n"
            "fully_shard(model[0])\nddp = fully_shard(model)")]


@pytest.mark.parametrize("changes, check, differs", [
    ([], "", ""),
    ([("loss = cross_entropy(ddp(inputs), targets)", "loss = cross_entropy(ddp(inputs), targets) * workers")],
     "gradient", "2.00 times the mean over its targets on 2 workers, and 1.00 times on one"),
    ([("    return loss.item()", "    if rank == 1:\n        model[2].weight.data.mul_(1.5)\n    return loss.item()")],
     "parameters", "between update 1 and 2 something wrote them on rank 1 alone")])
def test_what_fully_shard_divides_is_put_together(examined, changes, check, differs):
    code, out, err, verdicts = examined(ddp_scripts.changed([*SHARDED, *changes]), *MARKED)
    assert [name for name, verdict in verdicts.items() if verdict == "FAILED"] == [check] * bool(check), out
    assert code == bool(check) and verdicts["gradient"] in ("passed", "FAILED"), (out, err)
    assert differs in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", pairs.PAIRS)
def test_the_fault_of_a_pair_is_seen(examined, name):
    expected, words = pairs.PAIRS[name]["wants"], pairs.PAIRS[name]["words"]
    _, out, err, verdicts = examined(pairs.text(name, faulty=True), *pairs.words(name))
    check = next((one for one in verdicts if expected.startswith(one)), None)
    assert words in " ".join(out.split()) and (
        verdicts[check].lower() in expected.removeprefix(check).split() if check else expected == "noted"), out + err


@pytest.mark.slow
@pytest.mark.parametrize("name", [*pairs.PAIRS, *pairs.RIGHT])
def test_the_right_twin_of_a_pair_raises_no_alarm(examined, name):
    code, out, err, verdicts = examined(pairs.text(name, faulty=False), *pairs.words(name))
    assert code == (4 if name in pairs.HIDDEN else 0) and not {"FAILED", "warned"} & {*verdicts.values()}, out + err
