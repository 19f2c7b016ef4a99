"""The built-in workloads: their data, models, losses and measures."""
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hvdscale.errors import DataError, HvdscaleError, PlanError, UsageError
from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from hvdscale.plan.shards import Visits
from hvdscale.training.prepare import prepare, with_data
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import (Batch, Classification, Data, MapSplit, Split, bound_loss, build_model, load_data,
                               measured, problems, smoothed_cross_entropy)
from hvdscale.workload import summarized as summarized_metrics  # noqa: F401  called by golden/workload.txt
from hvdscale.workloads import find, names
from tests.parallel import toy
from tests.factories.jobs import Tokens
from tests.wording import answered


def test_the_cnn_of_digits_has_its_layers_and_gives_a_logit_a_class():
    workload, width = find("digits/cnn"), 12                # test_listing has the others' parameters
    model = workload.build(width=width)
    assert sum(p.numel() for p in model.parameters()) == (
        9 * width + width + 18 * width ** 2 + 2 * width + 80 * width + 10)
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    assert (workload.name, workload.metrics) == ("digits/cnn", {"cross_entropy": "min", "error": "min"})


@pytest.mark.parametrize("name", names())
def test_a_workloads_defaults_are_a_plan_at_any_worker_count(name):
    workload = find(name.replace("[_WIDTH...]", "_8").replace("WIDTH", "16"))
    assert problems(workload) == []
    examples = workload.card.train_examples if workload.card else 45000
    for workers in (1, 2, 3, 8):
        plan = settle(Settings.build(workload.defaults), workload, examples, 300, Place(workers, workers, 2))
        assert plan.stop_target is None or plan.stop_target.split == "val"
        assert plan.eval_every > 0 and plan.budget_steps > plan.warmup_steps


def test_what_a_workload_cannot_be_or_do_is_worded_as_it_was(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("")

    def said(call):
        try:
            faults = eval(call, globals())
        except HvdscaleError as error:
            return f"{type(error).__name__}: {error}"
        assert isinstance(faults, list) and faults
        return "\n".join(faults)
    golden("workload", answered("workload", said))


def test_a_workload_of_ones_own_is_found_in_its_module():
    assert find("tests.parallel.toy:WORKLOAD") is toy.WORKLOAD


@pytest.mark.parametrize("name, said", [
    ("tests.parallel.none:WORKLOAD", "No module named 'tests.parallel.none'"), (".toy:WORKLOAD", ""),
    (":WORKLOAD", ""), ("tests.parallel.toy:", "tests.parallel.toy has no ''"),
    ("tests.parallel.toy:nothing", ".* it defines TRAIN, .*load_augmented, WORKLOAD")])
def test_a_name_that_cannot_be_imported_is_told_why(name, said):
    with pytest.raises(UsageError, match=f"'{name}' cannot be imported: {said}"):
        find(name)


@pytest.mark.parametrize("text, said", [
    ("x = 1 / 0", r"ZeroDivisionError: division by zero \(.*own_job.py:1\)"),
    ("x = (", r"'\(' was never closed \(own_job.py, line 1\)"),
    ("import nowhere", r"ModuleNotFoundError: No module named 'nowhere' \(.*own_job.py:1\)"),
    ("import sys\nsys.exit(0)", r"SystemExit: 0 \(.*own_job.py:2\); under if __name__")])
def test_a_module_of_ones_own_that_fails_is_named_with_the_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_job", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_job.py").write_text(text)
    with pytest.raises(UsageError, match=f"'own_job:x' cannot be imported: {said}"):
        find("own_job:x")


@pytest.mark.parametrize("name, file", [("own_job:x", "own_job.py"), ("package.own_job:x", "package/own_job.py")])
def test_a_module_that_is_not_found_is_told_of_where_it_was_looked_for(tmp_path, monkeypatch, name, file):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/of/mine")
    said = (rf"No module named .*, neither in this folder \({tmp_path}\) nor in PYTHONPATH \(/of/mine\) nor installed. "
            f"Run the command in the folder that holds {file}, or name that: PYTHONPATH=")
    with pytest.raises(UsageError, match=f"{said}FOLDER$"):
        find(name)
    (tmp_path / "src" / file).parent.mkdir(parents=True)
    (tmp_path / "src" / file).write_text("")
    with pytest.raises(UsageError, match=f"{said}src$"):
        find(name)


def declaring(**attributes):
    """A job of one's own whose class says these of itself."""
    return type("Job", (Tokens,), attributes)()


def test_any_text_that_a_target_can_name_is_a_metric():
    assert problems(declaring(metrics={"nats": "min", "Top-1 acc (%)": "max", "c4/odd": "min"})) == []


def test_digits_is_cut_into_three_splits_that_share_no_image():
    sklearn = pytest.importorskip("sklearn.datasets")
    data = find("digits/fc").load(None)
    assert [len(split) for split in (data.train, data.val, data.test)] == [1197, 300, 300]
    rows = sorted(x.flatten().tolist() + [int(y)] for split in (data.train, data.val, data.test)
                  for x, y in zip(split.inputs, split.labels))
    images, labels = sklearn.load_digits(return_X_y=True)
    assert rows == sorted([*map(int, x), int(y)] for x, y in zip(images, labels))
    assert all(split.labels.bincount(minlength=10).min() > 0 for split in (data.train, data.val, data.test))


def test_without_scikit_learn_the_digits_name_it(monkeypatch, worded):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with worded.error(DataError):
        find("digits/fc").load(None)


@pytest.mark.parametrize("name, top", [("digits/fc", 16), ("mnist/fc_8", 255)])
def test_grey_levels_become_numbers_from_0_to_1(name, top):
    for dtype in (torch.float32, torch.float64):
        prepared = find(name).prepare(torch.tensor([0, top], dtype=torch.uint8), dtype)
        assert prepared.dtype == dtype and prepared.tolist() == [0, 1]


def test_a_training_subset_is_the_first_examples_and_no_more_than_there_are():
    split = Split(torch.arange(6), torch.arange(6))
    data = Data(split, split, split)
    assert data.with_train_subset(4).train.labels.tolist() == [0, 1, 2, 3]
    assert len(data.with_train_subset(4).val) == 6
    assert data.with_train_subset(None) is data


# the loss, and what is measured

LOGITS = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
TRUTH = torch.tensor([0, 4, 2, 2, 1, 0, 3, 4])


def slow_smoothed(logits, labels, share):
    """The published definition, one example and class at a time."""
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist()):
        log_sum = math.log(sum(map(math.exp, row)))
        for k, value in enumerate(row):
            total -= (1 - share if k == label else share / (len(row) - 1)) * (value - log_sum)
    return total


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8])
def test_label_smoothing_moves_its_share_to_the_other_classes(share):
    wanted = slow_smoothed(LOGITS, TRUTH, share)
    assert smoothed_cross_entropy(LOGITS, TRUTH, share).item() == pytest.approx(wanted, rel=1e-12)


class Fixed(torch.nn.Module):
    """A model that gives its inputs for logits."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return x * self.scale


def test_measures_are_unsmoothed_sums_and_counts():
    workload = find("digits/fc")
    batch = Batch(LOGITS * 16, TRUTH)       # prepare divides digits by 16
    measured = workload.measure(Fixed(), batch)
    wrong = sum(row.index(max(row)) != label for row, label in zip(LOGITS.tolist(), TRUTH.tolist()))
    assert 0 < wrong < 8
    assert (int(measured["error"][0]), measured["error"][1]) == (wrong, 8)
    assert measured["cross_entropy"][0].item() == pytest.approx(slow_smoothed(LOGITS, TRUTH, 0))
    total, count = workload.loss(Fixed(), batch, 0.1)
    assert (total.item(), count) == (pytest.approx(slow_smoothed(LOGITS, TRUTH, 0.1)), 8)


# what a workload of one's own gives, where it is called

class Job(Tokens):
    """Tokens, with one method's result replaced."""

    def __init__(self, **given):
        self.given = given

    def __getattribute__(self, name):
        given = object.__getattribute__(self, "__dict__").get("given", {})
        return (lambda *_: given[name]) if name in given else super().__getattribute__(name)


ONE = torch.ones((), requires_grad=True)


class WithParts(Job):
    """The job with two metrics made of two vectors."""

    metrics = {**Tokens.metrics, "first": "max", "last": "max"}
    summarized, parts = ("first", "last"), {"vector": 3, "one": 1}


NATS = {"nats": (1, 1), "odd": (1, 1)}


def test_a_count_may_be_a_tensor_or_zero_and_a_sum_have_a_dimension_of_one():
    total, count = bound_loss(Job(loss=(ONE.reshape(1, 1), torch.tensor(5))), 0.0)(None, None)
    assert (total.shape, count) == ((), 5)
    assert bound_loss(Job(loss=(ONE, 0)), 0.0)(None, None)[1] == 0         # a batch of padding alone


class WithArguments(Tokens):
    """A job whose load has data arguments."""

    def load(self, data_dir, length=4, *, allow_missing=False):
        return Data(GOOD, GOOD, record={"given": (data_dir, length, allow_missing)})


GOOD = Split(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


def test_data_arguments_reach_the_load_that_takes_them():
    assert load_data(WithArguments(), "d", {"length": 3}, allow_missing=True).record == {"given": ("d", 3, True)}


def test_what_the_data_says_of_the_problem_stands_in_the_plan():
    plan = replace(toy.settled(1), model_args={"width": 2}, data={"sequence": 8})
    found = with_data(plan, {"vocabulary": 9}, {"missing": ["a"]})
    assert found.model_args == {"vocabulary": 9, "width": 2} and found.data == {"sequence": 8, "missing": ["a"]}


def test_model_arguments_that_build_does_not_take_are_named(worded):
    with worded.error(UsageError):
        build_model(Tokens(), {"depth": 3})


def labelled(labels):
    """Load data of five classes whose split val has these labels."""
    good, val = (Split(torch.zeros(len(y), 1), torch.tensor(y)) for y in ([0, 1], labels))
    return load_data(Classification("d", "m", 5, lambda _: Data(good, val), None), None)


def test_labels_of_a_test_set_that_maps_are_not_read_at_load():
    good = Split(torch.zeros(2, 1), torch.tensor([0, 1]))
    load_data(Classification("d", "m", 5, lambda _: Data(good, good, MapSplit([(0, 9)])), None), None)


def test_loader_workers_for_data_in_memory_are_refused(worded):
    with worded.error(PlanError):
        prepare("tests.parallel.toy:WORKLOAD", [{"loader_workers": 2, "threads": 1}], SingleWorker())


def test_a_data_set_of_pairs_is_classified_too():
    """As torchvision's give them."""
    pairs = [(torch.full((1, 6, 6), float(i)), i % 5) for i in range(4)]
    batch = MapSplit(pairs).take(Visits(np.arange(4), np.zeros(4, np.int64)))
    model = toy.Net()
    assert bound_loss(toy.WORKLOAD, 0.0)(model, batch)[1] == 4
    with torch.no_grad():
        assert [count for _, count in measured(toy.WORKLOAD, model, batch).sums.values()] == [4, 4]
