"""hvdscale-doctor's checks: a sound job passes all of them, a planted fault is found and its cause named."""
import functools
import math
import re
import sys
import textwrap
from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch.distributed import _functional_collectives as funcol

from hvdscale.cli.doctor import command, say_on
from hvdscale.doctor.checks import checkpoint, decay, evaluation, gradients, losses, padding
from hvdscale.doctor.examine import examine, in_this_process, notes
from hvdscale.doctor.finding import JOB, Finding, Verdict, carried_out
from hvdscale.doctor.probe_step import examples, make_sample
from hvdscale.doctor.ranks import broken, digest, explain, same_on_ranks
from hvdscale.doctor.formats import Judged, render_findings, render_list
from hvdscale.errors import CommunicationError
from hvdscale.formatting.screen import Screen
from hvdscale.training.prepare import prepare
from hvdscale.training.snapshot import restore
from hvdscale.update.optimizers import SGD
from hvdscale.workers.group import SingleWorker
from tests import guides

MADE = "tests.factories.faulty_jobs"


def job(name, **layer):
    return prepare(name if "/" in name else f"{MADE}:{name}", [dict(threads=1, **layer)], SingleWorker())


def sample(name, **layer):
    return make_sample(job(name, **layer), 46)


@pytest.mark.parametrize("how, said", [
    ("split", "at the same places"), ("first", "at the same places"), ("last", "from its end"),
    ("data_set", "read the same data set"), ("apart", None), ("alike", None)])
def test_validation_examples_that_are_training_examples_are_warned_of(how, said):
    found = examples(job(f"leaking_{how}"))
    assert found.verdict == (Verdict.WARNED if said else Verdict.PASSED)
    assert (said or "") in found.differs and ("val" in found.differs) == bool(said)


@pytest.mark.parametrize("communicate, call", [
    (lambda rows: dist.all_reduce(rows), "all_reduce"), (lambda rows: dist.barrier(), "barrier"),
    (lambda rows: dist.all_gather_object([None], rows), "all_gather_object"),
    (lambda rows: funcol.all_reduce(rows, "sum", dist.group.WORLD), "all_reduce")])
def test_a_job_that_communicates_is_a_line_with_function_and_collective(tmp_path, monkeypatch, communicate, call):
    monkeypatch.setattr("tests.factories.faulty_jobs.total_of", communicate)
    prepared = job("pairs_of_all")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(CommunicationError, match=rf":\d+: <lambda> calls {call}; the doctor"):
            examine(prepared, [], SingleWorker(), checks=("losses",))
        dist.all_reduce(torch.ones(1))                  # outside of an examination
    finally:
        dist.destroy_process_group()


@functools.cache
def failures(name, **layer):
    found = in_this_process(sample(name, **layer), SingleWorker())
    return {finding.check: finding for finding in found if finding.verdict == Verdict.FAILED}


@pytest.mark.parametrize("name, layer", [
    ("sound", {}), ("torchs_own", {}), ("digits/fc", {}), ("sound", dict(last_batch="short", ghost_batch="global")),
    ("sound", dict(precision="bf16", optimizer="lamb", decay="cosine", accumulate=2)),
    ("pairs", dict(group_by_group="always")), ("packed", {}), ("masked_attention", {}), ("by_global_generator", {}),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("masked_mean", "masked_convolution", "even_gru")),
    ("torchs_own", dict(last_batch="short", optimizer="adamw", train_subset=30))])
def test_a_sound_job_passes_every_check(name, layer):
    assert failures(name, **layer) == {}


@pytest.mark.parametrize("name, layer, check, differs, cause", [
    ("mean_loss", {}, "losses", "the loss of the whole batch is", "a mean where a sum is expected"),
    ("mean_loss", {}, "gradients", "the mean gradient of 8 passes from", "a mean where a sum is expected"),
    ("count_of_one", {}, "losses", "whole batch is 1, of its parts together 3", "of batches"),
    ("count_of_one", {}, "gradients", "the mean gradient of", "of batches"),
    ("pairs", {}, "gradients", "the mean gradient of", "depends on the other examples of its batch"),
    ("broadcast", {}, "losses", "the loss of the whole batch is", r"shapes \(n, 1\) and \(n,\) were broadcast"),
    ("padded", {}, "examples", "train: take returns 8 examples for 5 visits", "pads, repeats or drops"),
    ("padded", {}, "evaluation", "is 32 in chunks of 32 and 36 in chunks of 7", "pads, repeats or drops"),
    ("local_norm", {}, "gradients", "the mean gradient of", "Standardised mixes .*batch statistics per local"),
    ("local_norm", {}, "batch-norm", r"layers.1 \(Standardised\)", "batch statistics per local batch"),
    ("torchs_own", dict(group_by_group="never"), "batch-norm", r"layers.1 \(BatchNorm2d\)", "per local batch"),
    ("torchs_dropout", dict(group_by_group="never"), "gradients", "the mean gradient of", "how the batch is cut"),
    ("non_deterministic", {}, "examples", "the batch.0. of example 0 differs when read twice", "deterministic"),
    ("non_deterministic", {}, "gradients", "the mean gradient of", "not deterministic"),
    ("too_long", {}, "examples", "val: DataError: example 61 of TooLong cannot be read", "length promises examples"),
    ("metric_count", {}, "evaluation", "the count of train/error is 1 in chunks of 32 and 5", "something else"),
    ("metric_mean", {}, "evaluation", "train/error between the two chunk sizes", "a mean where a sum is expected"),
    ("own_generator", {}, "random numbers", r"layers.4 \(OwnGenerator\)", "of its own.*layers.4 holds a Generator"),
    pytest.param("mean_loss_with_noise", {}, "losses", "the loss of the whole batch", "a mean where a sum is expected",
                 marks=pytest.mark.slow),
    ("unseeded", {}, "random numbers", "their gradients", "without a seed"),
    ("noise_for_the_batch", {}, "losses", "the loss of the whole batch", "loss, draws random numbers .* as a whole"),
    ("noise_for_the_batch", {}, "gradients", "the mean gradient of", "loss, draws random numbers .* as a whole"),
    ("unseeded", {}, "losses", "the loss of the whole batch", "without a seed"),
    ("by_second", {}, "random numbers", "their gradients", "seeded by the time"),
    ("padding_in_gru", {}, "padding", r"the loss is .*; it enters in gru \(GRU\)", "how far a batch is padded"),
    ("padding_in_gru", {}, "losses", "the loss of the whole batch is", "how far a batch is padded"),
    ("padding_in_gru", {}, "evaluation", "train/cross_entropy between", "how far a batch is padded"),
    pytest.param("padding_in_gru", dict(group_by_group="never"), "padding", "the loss is", "how far a batch is padded",
                 marks=pytest.mark.slow),
    ("padding_in_attention", {}, "padding", r"in attention \(MultiheadAttention\)", "how far a batch is padded"),
    ("padding_in_mean", {}, "padding", r"before drop \(Dropout\), or in it", "how far a batch is padded"),
    pytest.param("padding_in_convolution", {}, "padding", r"convolutions.2 \(Conv1d\)", "how far a batch is padded",
                 marks=pytest.mark.slow),
    ("padding_in_measure", {}, "padding", r"the count of error is \d+ and \d+", "how far a batch is padded"),
    ("padding_in_measure", {}, "evaluation", "the count of train/error is", "how far a batch is padded"),
    ("not_a_number", {}, "evaluation", "^train/error is NaN", "the NaN of one example"),
    ("sound", dict(optimizer=f"{MADE}:Decaying"), "weight decay", "layers.0.bias, layers.1.weight.* decay unasked",
     "the optimizer decays by itself"),
    ("sound", dict(optimizer=f"{MADE}:Pickled"), "checkpoint", "state/0/counted is a Counted", "pickling"),
    ("sound", dict(optimizer=f"{MADE}:Beginning"), "checkpoint",
     "after the load: exp_avg is zero or missing, and had values", "load_state_dict of the model or the optimizer"),
    ("sound", dict(optimizer=f"{MADE}:Forgetful"), "checkpoint", "layers.0.weight after the next step",
     "a state that its state_dict lacks"),
])
def test_a_planted_fault_is_found_and_its_cause_named(name, layer, check, differs, cause):
    found = failures(name, **layer)
    assert check in found, found
    assert re.search(differs, found[check].differs) and re.search(cause, found[check].cause), found[check]
    assert found[check].remedy


def test_a_fault_of_the_data_is_named_as_the_cause_of_what_follows_from_it():
    found = failures("non_deterministic")
    assert {"gradients", "losses", "checkpoint", "evaluation"} <= set(found)
    assert {finding.remedy for check, finding in found.items() if check != "examples"} == {
        "see the check 'examples' first"}
    by = failures("mean_loss")["losses"].by
    assert 0.5 < by < 1 and failures("local_norm")["batch-norm"].by > 0.01       # three parts' means for one: 2/3 off


def test_a_job_that_does_not_run_in_fp64_is_checked_in_fp32(monkeypatch, worded):
    made = job("sound")
    forward = type(made.model).forward
    monkeypatch.setattr(type(made.model), "forward", lambda model, x: forward(model, x.float()))
    cut = make_sample(made, 46)
    worded(cut.note, about="does not")
    assert cut.plan.precision == "fp32"
    assert gradients(cut).verdict == Verdict.PASSED


def test_checks_leave_parameters_buffers_and_generators_as_they_were():
    cut = sample("sound")
    before = [values.clone() for values in cut.job.model.state_dict().values()]
    state = torch.get_rng_state()
    list(in_this_process(cut, SingleWorker()))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, cut.job.model.state_dict().values()))


def test_an_error_inside_a_check_is_a_failed_finding_that_says_where():
    def check():
        raise ZeroDivisionError("of the job")
    found = carried_out("losses", check)
    assert found.verdict == Verdict.FAILED
    assert re.search(r"ZeroDivisionError: of the job \(.*test_checks.py:\d+\)", found.differs)


def test_decay_groups_are_told_and_decay_that_an_optimizer_ignores_is_a_failure(monkeypatch):
    assert "2 of 6 tensors decay" in decay(sample("sound")).looked_at
    asked = decay(sample("sound", decay_norm_and_bias=True))
    assert asked.verdict == Verdict.PASSED and "6 of 6 tensors decay" in asked.looked_at
    monkeypatch.setattr(SGD, "step", lambda self, closure=None: None)
    assert "layers.0.weight, layers.5.weight do not decay" in decay(sample("sound", optimizer="sgd")).differs


@pytest.mark.parametrize("name", ["padding_in_gru", "padding_in_attention", "padding_in_mean"])
def test_padding_is_not_blamed_on_a_layer_that_takes_each_example_alone(name):
    for finding in failures(name).values():
        assert "group_by_group" not in finding.remedy and "mixes the examples" not in finding.cause
    assert re.search("pack the sequences.*mask", failures(name)["padding"].remedy)


def test_padding_in_batch_norm_is_only_a_warning_group_by_group(worded):
    by_group, whole = (padding(sample("padding_in_norm", group_by_group=said)) for said in ("auto", "never"))
    assert by_group.verdict == Verdict.WARNED and "in training, the loss is" in by_group.differs
    worded(by_group.cause, about="any number")
    assert "batch-norm" in by_group.remedy
    assert whole.verdict == Verdict.FAILED and "any number of workers" not in whole.cause


def test_what_never_pads_has_no_padding_to_check():
    assert {padding(sample(name)).verdict for name in ("sound", "even_gru")} == {Verdict.NOT_APPLICABLE}
    assert re.search(r"examples of train, the batch\['sequence'\] padded to \d and to \d.*: the same results",
                     padding(sample("packed")).looked_at)


@pytest.mark.parametrize("name, layer, differs, looked_at", [
    ("nothing_counted", {}, "train/error, val/error, test/error are NaN before the first step", ""),
    ("some_counted", dict(target="none", train_eval_examples=61), "", "val/error, test/error are NaN"),
    ("some_counted", dict(target="train/error<0.1", train_eval_examples=61), "", "val/error, test/error are NaN"),
    ("some_counted", dict(target="val/error<0.1", train_eval_examples=61), "val/error is NaN before the first step",
     "val/error, test/error are NaN"),
    ("no_test", dict(target="val/error<0.1"), "", "")])
def test_a_metric_that_counts_nothing_yet_is_warned_of_where_it_is_needed(name, layer, differs, looked_at):
    found = evaluation(sample(name, **layer))
    assert (found.verdict, found.differs) == (Verdict.WARNED if differs else Verdict.PASSED, differs)
    assert looked_at in found.looked_at and ("warned: evaluation" in render_findings([found], False)) == bool(differs)


def on_ranks(*by_rank, cut=None):
    return same_on_ranks(cut or sample("sound"), by_rank, "so many ranks")


def test_ranks_that_have_other_data_are_named(worded):
    whole = digest(sample("sound"))
    assert on_ranks(whole, dict(whole)).verdict == Verdict.PASSED
    changed = {**whole, "example 3 of val": whole["example 3 of val"]._replace(value="another")}
    other = on_ranks(whole, whole, changed)
    assert other.verdict == Verdict.FAILED
    worded(other.differs)
    assert on_ranks(*[broken("no file")] * 2).verdict == Verdict.NOT_APPLICABLE
    one = on_ranks(whole, broken("no file"))
    assert one.verdict == Verdict.FAILED and one.differs.endswith("on rank 1 as on rank 0: no file")


@pytest.mark.parametrize("part, differs", [
    ("load", "example 0 of train"), ("build", "the model's layers.5.bias, as built,"), ("read", "example 0 of train"),
    ("collate", "example 0 of train"), ("loss", "the gradient of the loss of the same 46 examples under the same seed"),
    ("measure", "train/cross_entropy of the same examples by the same model")])
@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "SLURM_PROCID"])
def test_a_rank_in_any_part_of_the_job_is_found(monkeypatch, variable, part, differs, worded):
    by_rank = []
    for number in range(2):
        monkeypatch.setenv(variable, str(number))
        cut = sample(f"{part}_by_{variable}")
        by_rank.append(digest(cut))
    found = on_ranks(*by_rank, cut=cut)
    worded(found.differs)
    assert found.cause == JOB.checks["ranks"]["causes"]["rank"]["cause"]
    assert found.remedy == JOB.checks["next for ranks"]["read" if part in ("load", "collate") else part]


def test_numbers_are_the_same_up_to_the_limit_and_where_both_are_nan():
    what = "train/error of the same examples by the same model"
    cut = sample("sound")
    measured = digest(cut)[what]
    [value] = measured.value
    for one, other, verdict in ((value, value * (1 + 1e-12), Verdict.PASSED), (value, value * 1.01, Verdict.FAILED),
                                (value, math.nan, Verdict.FAILED), (math.nan, math.nan, Verdict.PASSED)):
        pair = [{what: measured._replace(value=[number])} for number in (one, other)]
        assert value > 0 and on_ranks(*pair, cut=cut).verdict == verdict


def test_a_fault_that_another_check_finds_explains_the_ranks():
    found = explain(sample("unseeded"), "loss", "rank")
    assert "without a seed" in found["why"] and found["next"] == "see the check 'random numbers' first"


FOUND = [Finding("losses", Verdict.PASSED, "loss and count", by=1.2e-16, limit=1e-9),
         Finding("examples", Verdict.FAILED, "24 examples of train, read twice " * 4, "it differs", 0.25, 0.0,
                 "not deterministic " * 9, "mend it"),
         Finding("padding", Verdict.NOT_APPLICABLE, "no padding")]


@pytest.mark.parametrize("width", [60, 72, 120])
def test_a_report_keeps_to_the_terminals_width_and_its_columns(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = render_findings(FOUND, False).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line[:24].isspace() or re.match(r"  \S.{13}  (passed|FAILED|-     )  \S", line)
               for line in lines[:lines.index("")])


def test_slow_checks_are_reported_on_stderr_by_rank_0(capsys, monkeypatch):
    monkeypatch.setattr("hvdscale.formatting.screen.AFTER", 0.0)
    for rank in (0, 1):
        say_on(rank, Screen(sys.stdout, False, (0.0, 0.0)))("losses")
    assert capsys.readouterr() == ("", "0 s: checking losses\n")


def test_a_failure_shows_what_differs_by_how_much_the_cause_and_the_next_move():
    assert render_findings(FOUND, True).count("\x1b[1;31mFAILED\x1b[0m") == 2
    assert render_findings([replace(FOUND[1], cause="not deterministic")], False).split("\n\n")[1].splitlines() == [
        "FAILED: examples", "  what differs  it differs", "  by how much   0.25; allowed 0",
        "  usual cause   not deterministic", "  next move     mend it"]


def test_the_excerpt_in_the_guide_is_what_is_printed_of_that_fault(monkeypatch):
    readme = guides.read("hvdscale/workloads/README.rst")
    source = guides.block("hvdscale/workloads/README.rst", "python")
    whole, faulty = "square().sum(), len(clean)\n", "square().sum(1).mean(), len(clean)"
    assert source.count(whole) == 1 and f"``{faulty}``" in readme
    made = ModuleType("made")
    exec(source.replace(whole, faulty + "\n"), vars(made))
    monkeypatch.setitem(sys.modules, "made", made)
    cut = make_sample(prepare("made:workload", [dict(threads=1)], SingleWorker()), 46)
    printed = render_findings([losses(cut)], False).split("\n\n")[1]
    assert textwrap.indent(printed, "    ") + "\n\n" in readme


def test_an_examination_is_sound_where_nothing_failed():
    some = Judged((FOUND[0], FOUND[2]), {}, ["a job", render_list("Notes:", ["a note"])])
    assert some.sound and not replace(some, findings=tuple(FOUND)).sound
    said = some.render(1.5, False)
    assert "- a note" in said and said.endswith("1 passed, 1 -; 1.5 s".replace("1 -", "1 not applicable"))


@pytest.mark.parametrize("name, said", [
    ("torchs_own", "slower; the modules of hvdscale.modules are faster$"),
    ("packed", "slower; if all have one length, group_by_group=never is faster$"),
    ("by_global_generator", "random numbers of its own, so .* but slower$")])
def test_what_would_be_faster_is_said_where_something_would(name, said):
    cut = sample(name)
    [note] = [note for note in notes(cut.job, cut) if "each ghost group gets its own pass" in note]
    assert re.search(said, note)


def test_the_help_lists_what_the_doctor_heeds_and_takes_what_a_run_would_write():
    done = CliRunner().invoke(command, ["--help-all"])
    listed = re.findall(r"^  (--[\w-]+)", done.output, re.M)
    assert {"--global-batch", "--init-from", "--sample"} <= set(listed)
    assert not {"--checkpoint", "--resume", "--log", "--save-model", "--overwrite", "--list"} & set(listed)
    assert re.findall(r"(\S+)\s+--list", done.output) == ["(`hvdscale-train"] * 2       # the workloads, and the presets
    taken = ["w", "--checkpoint", "kept", "--resume", "auto", "--log-file", "w.h5", "--save-model", "m.pt"]
    assert CliRunner().invoke(command, taken, standalone_mode=False).return_value[0] == "w"


def test_what_a_model_loses_in_a_checkpoint_is_named_as_that_of_a_script(monkeypatch, worded):
    def forget(state, step):
        restore(state, step)
        step.model.state_dict()["layers.1.running_mean"].zero_()
    monkeypatch.setattr("hvdscale.doctor.checks.restore", forget)
    worded(checkpoint(sample("torchs_own")).differs)


def test_no_checkpoint_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert checkpoint(sample("sound")).verdict == Verdict.PASSED
    assert list(tmp_path.iterdir()) == []


def test_few_examples_are_enough_for_a_sample_of_a_small_job():
    cut = make_sample(job("sound", train_subset=20, local_batch=4), 46)
    assert cut.plan.global_batch == 20 and math.isclose(gradients(cut).by, 0, abs_tol=1e-12)
