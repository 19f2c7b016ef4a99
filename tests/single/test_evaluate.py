"""Evaluation: exact means over whole splits, every example once, at any number of workers."""
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.evaluate import Evaluator
from hvdscale.workers import Lone
from hvdscale.workload import Split
from tests.parallel import toy
from tests.single.made_workers import on_each

CPU = torch.device("cpu")
SIZES = {"train": 53, "val": 31, "test": 1}


class Whole:
    """A workload whose measures are whole numbers: the labels' sum, and how many examples are odd."""

    metrics = ("label", "odd")

    def measure(self, model, batch):
        assert not model.training and not torch.is_grad_enabled()
        return {"label": (batch.labels.sum(), len(batch)), "odd": ((batch.labels % 2).sum(), len(batch))}


def splits_of(sizes):
    drawn = np.random.default_rng(0)
    return {name: toy.Counted(torch.zeros(n, 1), torch.from_numpy(drawn.integers(0, 1000, n)), Counter())
            for name, n in sizes.items()}


def evaluated(workload, splits, chunk, workers, model):
    """The measures of all the splits; the model is in eval mode already, as threads share it."""
    return Evaluator(workload, splits, chunk, workers, CPU)(model.eval(), tuple(splits))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("chunk", [1, 2, 7, 31, 1000])
def test_every_example_counts_once_at_any_worker_count(workers, chunk):
    """No average of averages over uneven shares, no example twice to even them: whole numbers agree to the last bit."""
    splits = splits_of(SIZES)
    plain = {}
    for name, split in splits.items():
        labels = split.labels.tolist()
        plain[f"{name}/label"] = sum(labels) / len(labels)
        plain[f"{name}/odd"] = sum(label % 2 for label in labels) / len(labels)
    model = nn.Linear(1, 1)
    ranks = on_each(workers, lambda member: evaluated(Whole(), splits, chunk, member, model))
    assert ranks == [plain] * workers
    for name, n in SIZES.items():
        assert splits[name].taken == {i: 1 for i in range(n)}


@pytest.mark.parametrize("chunk", [1, 4, 31, 256])
def test_a_models_measures_are_those_of_a_loop_over_examples(chunk):
    torch.manual_seed(0)
    model = toy.Net().double()
    data = toy.load()
    measured = Evaluator(toy.WORKLOAD, {"val": data.val}, chunk, Lone(), CPU)(model, ("val",))
    entropy, wrong = 0.0, 0
    for x, y in zip(data.val.inputs, data.val.labels.tolist()):
        logits = model(x[None])[0].tolist()
        entropy += math.log(sum(map(math.exp, logits))) - logits[y]
        wrong += logits.index(max(logits)) != y
    assert measured == {"val/cross_entropy": pytest.approx(entropy / toy.VAL, rel=1e-12), "val/error": wrong / toy.VAL}


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_models_measures_do_not_depend_on_the_worker_count_to_the_last_bit(workers):
    torch.manual_seed(0)
    model, data = toy.Net(dropout=0.5).float().eval(), toy.load()
    splits = {"train": data.train, "val": data.val, "test": data.test}
    alone = evaluated(toy.WORKLOAD, splits, 4, Lone(), model)
    ranks = on_each(workers, lambda member: evaluated(toy.WORKLOAD, splits, 4, member, model))
    assert ranks == [alone] * workers


def test_sums_beyond_the_whole_numbers_of_float32_are_exact():
    class Large:
        metrics = ("label",)

        def measure(self, model, batch):
            return {"label": (batch.labels.sum(), len(batch))}
    split = Split(torch.zeros(4, 1), torch.tensor([2**24 + 1, 2**30 + 1, 3, 5]))
    measured = Evaluator(Large(), {"val": split}, 1, Lone(), CPU)(nn.Linear(1, 1), ("val",))
    assert measured == {"val/label": (2**24 + 2**30 + 10) / 4}


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_its_mode(training):
    model = nn.Linear(1, 1).train(training)
    Evaluator(Whole(), splits_of(SIZES), 7, Lone(), CPU)(model, ("val",))
    assert model.training == training


def test_an_empty_split_has_no_mean():
    measured = Evaluator(Whole(), splits_of({"val": 3, "test": 0}), 2, Lone(), CPU)(nn.Linear(1, 1), ("val", "test"))
    assert math.isnan(measured["test/label"]) and not math.isnan(measured["val/label"])


def test_the_splits_that_are_asked_for_are_measured_and_no_others():
    splits = splits_of(SIZES)
    measured = Evaluator(Whole(), splits, 7, Lone(), CPU)(nn.Linear(1, 1), ("test", "val"))
    assert set(measured) == {"test/label", "test/odd", "val/label", "val/odd"}
    assert not splits["train"].taken
