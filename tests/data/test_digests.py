"""What of a split's data its digest shows, and what stays unknown."""
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from hvdscale.data.splits import MapSplit, Split, digest_split

PAIR = namedtuple("Pair", "image label")


@dataclass
class Example:
    words: torch.Tensor


class Listed(Dataset):
    """These examples, one of which may be None: it cannot be read."""

    def __init__(self, examples):
        self.examples, self.read = examples, []

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        self.read.append(i)
        if self.examples[i] is None:
            raise OSError("no such file")
        return self.examples[i]


def listed(*examples):
    return digest_split(MapSplit(Listed(examples), collate=lambda batch: batch))


def test_only_the_first_and_the_last_example_are_read():
    data = Listed([1.0] * 1000)
    assert digest_split(MapSplit(data))["examples"] == 1000
    assert set(data.read) == {0, 999}


@pytest.mark.parametrize("one, other", [
    (torch.arange(6), torch.arange(6) + 1), (torch.ones(2, 3), torch.ones(3, 2)), (np.uint8([1, 2]), np.uint8([2, 1])),
    ({"a": 1, "b": [2, "x"]}, {"a": 1, "b": [2, "y"]}), (PAIR(np.eye(2), 1), PAIR(np.eye(2), 2)), (b"a", "a"),
    (Example(torch.zeros(3)), Example(torch.ones(3))), (0.25, 0.26), (torch.randn(8), -torch.randn(8)),
    (torch.linspace(-1, 1, 784), torch.linspace(-1, 1, 784).flip(0)), (1, True), (np.array(["a"]), np.array(["b"])),
    (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))])
def test_another_example_has_another_digest(one, other):
    first = listed(one, 0)["first"]
    assert first and first == listed(one, 0)["first"] and first != listed(other, 0)["first"]


def test_last_bits_of_numbers_that_are_not_whole_do_not_count():
    images = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert listed(images) == listed(images * (1 + 1e-7))
    assert listed(images) != listed(images * 1.1) and listed(images) != listed(images + 0.1)


@pytest.mark.parametrize("example", [
    object(), {"image": object(), "label": 1}, {1, 2}, None, torch.zeros(2).to_sparse()])
def test_an_example_of_unknown_type_or_that_cannot_be_read_is_unknown(example):
    assert listed(example, 7) == {"examples": 2, "first": None, "last": listed(0, 7)["last"]}


def test_an_example_that_differs_each_time_is_unknown_and_seeded_noise_is_known():
    generator = np.random.default_rng()

    class Noisy(Listed):
        def __getitem__(self, i):
            return generator.random() if i else torch.rand(3)
    before = torch.get_rng_state()
    found = digest_split(MapSplit(Noisy([0, 0])))
    assert found["first"] and found["last"] is None
    assert torch.equal(before, torch.get_rng_state())


def test_a_split_in_memory_counts_without_its_augmentation_and_may_be_empty():
    inputs, labels = torch.arange(12.0).view(4, 3), torch.arange(4)
    assert digest_split(Split(inputs, labels)) == digest_split(Split(inputs, labels, augment=lambda x, draws: x + 1))
    assert digest_split(Split(inputs[:0], labels[:0])) == {"examples": 0}
    assert digest_split(Split(inputs, labels))["last"] != digest_split(Split(inputs, labels.flip(0)))["last"]
