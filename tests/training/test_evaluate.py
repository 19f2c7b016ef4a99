"""Evaluation: exact means over whole splits, every example once, at any number of workers."""
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from hvdscale.errors import DataError
from hvdscale.training.evaluate import Evaluator
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Split, Workload
from tests.parallel import toy
from tests.factories.workers import on_each

CPU = torch.device("cpu")
SIZES = {"train": 53, "val": 31, "test": 1}


class Whole(Workload):
    """A workload whose measures are whole numbers: the labels' sum, and how many examples are odd."""

    metrics = ("label", "odd")

    def measure(self, model, batch):
        assert not model.training and not torch.is_grad_enabled()
        return {"label": (batch.labels.sum(), len(batch)), "odd": ((batch.labels % 2).sum(), len(batch))}


class Summed(Whole):
    """Beside these, what is made of the histogram of the labels' last digits and of their squares."""

    metrics = {"label": "min", "deviation": "min", "odd": "min", "commonest": "max"}
    summarized = ("commonest", "deviation")
    parts = {"digits": 10, "squares": 1}

    def measure(self, model, batch):
        digits = torch.bincount(batch.labels % 10, minlength=10)
        return {**super().measure(model, batch), "digits": digits, "squares": batch.labels.square().sum()[None]}

    def summarize(self, means, parts):
        variance = parts["squares"][0] / parts["digits"].sum() - means["label"] ** 2
        return {"deviation": math.sqrt(variance), "commonest": parts["digits"].argmax()}


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


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_metric_that_is_no_mean_is_made_of_the_whole_split(workers, chunk):
    """The parts add up over the chunks of a split, and every rank has the result."""
    splits = splits_of({**SIZES, "test": 0})
    model = nn.Linear(1, 1)
    ranks = on_each(workers, lambda member: evaluated(Summed(), splits, chunk, member, model))
    for measured in ranks:
        assert list(measured)[:4] == ["train/label", "train/deviation", "train/odd", "train/commonest"]
        for name in ("train", "val"):
            labels = splits[name].labels.numpy()
            assert measured[f"{name}/commonest"] == np.bincount(labels % 10).argmax()
            assert measured[f"{name}/deviation"] == pytest.approx(labels.std(), rel=1e-12)
            assert measured[f"{name}/deviation"] == ranks[0][f"{name}/deviation"]
        assert all(math.isnan(measured[f"test/{name}"]) for name in Summed.metrics)


@pytest.mark.parametrize("chunk", [1, 4, 31, 256])
def test_a_models_measures_are_those_of_a_loop_over_examples(chunk):
    torch.manual_seed(0)
    model = toy.Net().double()
    data = toy.load()
    measured = Evaluator(toy.WORKLOAD, {"val": data.val}, chunk, SingleWorker(), CPU, "fp64")(model, ("val",))
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
    alone = evaluated(toy.WORKLOAD, splits, 4, SingleWorker(), model)
    ranks = on_each(workers, lambda member: evaluated(toy.WORKLOAD, splits, 4, member, model))
    assert ranks == [alone] * workers


def test_sums_beyond_the_whole_numbers_of_float32_are_exact():
    class Large(Workload):
        metrics = ("label",)

        def measure(self, model, batch):
            return {"label": (batch.labels.sum(), len(batch))}
    split = Split(torch.zeros(4, 1), torch.tensor([2**24 + 1, 2**30 + 1, 3, 5]))
    measured = Evaluator(Large(), {"val": split}, 1, SingleWorker(), CPU)(nn.Linear(1, 1), ("val",))
    assert measured == {"val/label": (2**24 + 2**30 + 10) / 4}


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_its_mode(training):
    model = nn.Linear(1, 1).train(training)
    Evaluator(Whole(), splits_of(SIZES), 7, SingleWorker(), CPU)(model, ("val",))
    assert model.training == training


def test_the_splits_that_are_asked_for_are_measured_and_no_others():
    splits = splits_of(SIZES)
    measured = Evaluator(Whole(), splits, 7, SingleWorker(), CPU)(nn.Linear(1, 1), ("test", "val"))
    assert set(measured) == {"test/label", "test/odd", "val/label", "val/odd"}
    assert not splits["train"].taken


def test_a_fault_of_one_ranks_share_is_raised_on_all():
    class Faulty(Whole):
        def measure(self, model, batch):
            if 900 in batch.labels:
                raise DataError("the planted fault")
            return super().measure(model, batch)
    splits = {"val": Split(torch.zeros(6, 1), torch.tensor([1, 2, 3, 900, 5, 6]))}

    def said(member):
        with pytest.raises(DataError) as raised:
            Evaluator(Faulty(), splits, 2, member, CPU)(nn.Linear(1, 1).eval(), ("val",))
        return str(raised.value)
    assert on_each(3, said) == ["rank 1 of 3: the planted fault"] * 3


class Averaged(Workload):
    """A workload that measures the mean of the model's outputs, whose split is read once more where it is NaN."""

    metrics = ("output", "examples")

    def measure(self, model, batch):
        return {"output": (model(batch.inputs).sum(), len(batch)), "examples": (len(batch), len(batch))}


@pytest.mark.parametrize("workers, named", [(1, ""), (2, "rank 1 of 2: ")])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_value_that_is_not_finite_is_named_on_all_ranks(workers, named, value):
    splits = {"val": Split(torch.ones(7, 2), torch.zeros(7)), "test": Split(torch.ones(5, 2), torch.zeros(5))}
    splits["test"].inputs[2, 1] = value                 # chunks of 2: the sixth of them
    model = nn.Linear(2, 1)

    def said(member):
        with pytest.raises(DataError) as raised:
            evaluated(Averaged(), splits, 2, member, model)
        return str(raised.value)
    assert on_each(workers, said) == [f"{named}the batch.inputs holds {value:g} in test example 2; fix or leave out "
                                      "values that are not finite"] * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_diverged_has_its_means_and_the_data_are_looked_at_once(workers):
    splits = splits_of({"val": 5, "test": 0})
    model = nn.Linear(1, 1).requires_grad_(False).eval()
    model.bias.fill_(math.inf)

    def measure_twice(member):
        evaluate = Evaluator(Averaged(), splits, 2, member, CPU)
        return [evaluate(model, ("val", "test")) for _ in range(2)]
    for measured in sum(on_each(workers, measure_twice), []):
        assert (measured["val/output"], measured["val/examples"]) == (math.inf, 1)
        assert math.isnan(measured["test/output"])
    assert splits["val"].taken == {i: 3 for i in range(5)}


def test_a_split_that_is_not_finite_where_no_measure_shows_it_is_left_alone():
    split = Split(torch.full((4, 1), math.nan), torch.arange(4))
    measured = Evaluator(Whole(), {"val": split}, 2, SingleWorker(), CPU)(nn.Linear(1, 1), ("val",))
    assert measured == {"val/label": 1.5, "val/odd": 0.5}
