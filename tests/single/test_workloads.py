"""The built-in workloads: their data, models, losses and measures."""
import math

import pytest
import torch
from torch.nn import functional

from hvdscale.config import Settings
from hvdscale.errors import DataError, UsageError
from hvdscale.plan import Place, settle
from hvdscale.workload import Batch, Data, Split, smoothed_cross_entropy
from hvdscale.workloads import find, names
from tests.parallel import toy

# name, input shape, parameters: weights and biases of each layer added up (WIDTH: that of digits/cnn)
WIDTH = 12
MODELS = [
    ("digits/fc", (1, 8, 8), 64 * 64 + 64 + 64 * 10 + 10),
    ("digits/fc_32", (1, 8, 8), 64 * 32 + 32 + 32 * 10 + 10),
    ("digits/fc_32_16", (1, 8, 8), 64 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10),
    ("digits/cnn", (1, 8, 8), 9 * WIDTH + WIDTH + 18 * WIDTH ** 2 + 2 * WIDTH + 80 * WIDTH + 10),
    ("mnist/fc_100", (1, 28, 28), 784 * 100 + 100 + 100 * 10 + 10),
    ("fashion_mnist/fc_10_20", (1, 28, 28), 784 * 10 + 10 + 10 * 20 + 20 + 20 * 10 + 10),
    *((f"mnist/{name}", (1, 28, 28), 25 * a + a + 25 * a * b + b + 49 * b * c + c + c * 10 + 10)
      for name, a, b, c in [("simple_cnn", 32, 64, 1024), ("simple_cnn_narrow", 16, 32, 512),
                            ("simple_cnn_base", 32, 64, 1024), ("simple_cnn_wide", 64, 128, 2048)])]


@pytest.mark.parametrize("name, shape, parameters", MODELS)
def test_a_model_has_its_layers_and_gives_a_logit_a_class(name, shape, parameters):
    workload = find(name)
    model = workload.build(**({"width": WIDTH} if name == "digits/cnn" else {}))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert (workload.name, workload.metrics) == (name, ("cross_entropy", "error"))


@pytest.mark.parametrize("name, _, __", MODELS)
def test_a_workloads_defaults_are_a_plan_at_any_worker_count(name, _, __):
    workload = find(name)
    for workers in (1, 2, 3, 8):
        plan = settle(Settings.build(workload.defaults), workload, 1197, 300, Place(workers, workers, 2))
        assert plan.stop_target.column == "val/error"
        assert plan.eval_every > 0 and plan.budget_steps > plan.warmup_steps


@pytest.mark.parametrize("name", ["digits", "digits/", "digits/fc_", "digits/fc_0", "digits/fc_a", "digits/simple_cnn",
                                  "mnist/fc", "mnist/fc_-3", "mnist/simple_cnn_huge", "cifar/cnn", "", "/"])
def test_an_unknown_workload_is_named_with_those_that_there_are(name):
    with pytest.raises(UsageError, match=f"there is no workload '{name}'; choose one of digits/fc, .*mnist/simple_cnn"):
        find(name)


def test_a_workload_of_ones_own_is_found_in_its_module():
    assert find("tests.parallel.toy:WORKLOAD") is toy.WORKLOAD


@pytest.mark.parametrize("name, said", [
    ("tests.parallel.none:WORKLOAD", "cannot be imported: No module named 'tests.parallel.none'"),
    ("tests.parallel.toy:NONE", "cannot be imported: .*NONE"), ("tests.parallel.toy:", "cannot be imported"),
    (".toy:WORKLOAD", "cannot be imported"), (":WORKLOAD", "cannot be imported"),
    ("tests.parallel.toy:load", "is a function, not a hvdscale.workload.Workload")])
def test_a_name_that_leads_to_no_workload_of_ones_own_is_named(name, said):
    with pytest.raises(UsageError, match=f"{name}.* {said}"):
        find(name)


def test_every_listed_name_is_found():
    for name in names():
        found = find(name.replace("[_WIDTH...]", "_8").replace("WIDTH", "16"))
        assert name.startswith(found.dataset)


def test_digits_is_cut_into_three_splits_that_share_no_image():
    sklearn = pytest.importorskip("sklearn.datasets")
    data = find("digits/fc").load(None)
    assert [len(split) for split in (data.train, data.val, data.test)] == [1197, 300, 300]
    rows = sorted(x.flatten().tolist() + [int(y)] for split in (data.train, data.val, data.test)
                  for x, y in zip(split.inputs, split.labels))
    images, labels = sklearn.load_digits(return_X_y=True)
    assert rows == sorted([*map(int, x), int(y)] for x, y in zip(images, labels))
    assert all(split.labels.bincount(minlength=10).min() > 0 for split in (data.train, data.val, data.test))


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
    with pytest.raises(DataError, match="train_subset = 7: the training set has 6 examples"):
        data.with_train_subset(7)


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


def test_a_share_s_is_s_times_k_over_k_minus_1_of_torchs_definition():
    """Label smoothing has two definitions: the share goes to the other classes, or as in torch to all of them."""
    ours = smoothed_cross_entropy(LOGITS, TRUTH, 0.1)
    theirs = functional.cross_entropy(LOGITS, TRUTH, reduction="sum", label_smoothing=0.1 * 5 / 4)
    same_number = functional.cross_entropy(LOGITS, TRUTH, reduction="sum", label_smoothing=0.1)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-14)
    assert ours.item() != pytest.approx(same_number.item(), rel=1e-3)


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
