"""Average precision from counts: against scikit-learn, a slow loop, and itself in other orders and batches."""
import numpy as np
import pytest
import torch

from hvdscale.workloads.large.open_images import COUNTS, FINENESS, LARGEST, LEVELS, average_precision, score_counts


def drawn(seed, n=200, classes=30, share=0.1):
    """Logits and targets of which the logits know something; a tenth of the targets count nowhere."""
    made = torch.Generator().manual_seed(seed)
    targets = (torch.rand(n, classes, generator=made) < share).to(torch.int8)
    logits = 2 * torch.randn(n, classes, generator=made) - 3 + 1.5 * targets
    targets[torch.rand(n, classes, generator=made) < 0.1] = -1
    return logits, targets


def on_grid(logits):
    """The score that a logit counts as, by its definition."""
    return torch.clamp((logits.double() * FINENESS).floor() / FINENESS, -LARGEST, LARGEST - 1 / FINENESS)


def of(logits, targets):
    return average_precision(score_counts(logits, targets).numpy())


@pytest.mark.parametrize("seed", range(5))
def test_it_is_scikit_learns_of_the_scores_to_1_256(seed):
    from sklearn.metrics import average_precision_score
    logits, targets = drawn(seed)
    counted = targets >= 0
    expected = average_precision_score((targets == 1)[counted].numpy(), on_grid(logits)[counted].numpy())
    assert of(logits, targets) == pytest.approx(expected, rel=1e-12)


def test_rounding_the_scores_costs_little():
    from sklearn.metrics import average_precision_score
    logits, targets = drawn(7, n=2000, classes=50, share=0.01)
    counted = targets >= 0
    exact = average_precision_score((targets == 1)[counted].numpy(), logits[counted].double().numpy())
    assert of(logits, targets) == pytest.approx(exact, rel=0.003)


def test_by_hand():
    """Positives at ranks 1 and 3: (1/1 + 2/3) / 2; of one score with the negative between them: (2/3 + 2/3) / 2."""
    targets = torch.tensor([1, 0, 1, 0])
    assert of(torch.tensor([4.0, 3.0, 2.0, 1.0]), targets) == pytest.approx((1 + 2 / 3) / 2)
    assert of(torch.tensor([2.0, 2.0, 2.0, 1.0]), targets) == pytest.approx(2 / 3)
    assert of(torch.tensor([1.0, 4.0, 1.0, 2.0]), targets) == pytest.approx(2 / 4)


def test_neither_order_nor_batches_show_to_the_last_bit():
    logits, targets = drawn(3)
    whole = of(logits, targets)
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    for size in (1, 7, 64):
        counts = sum(score_counts(logits[part], targets[part]) for part in order.split(size))
        assert average_precision(counts.numpy()) == whole


def test_pairs_that_do_not_count_change_nothing():
    logits, targets = drawn(4)
    other = torch.where(targets < 0, logits + 5, logits)
    assert of(other, targets) == of(logits, targets)
    assert of(other, targets.clamp(min=0)) != of(logits, targets.clamp(min=0))


def test_every_pair_is_counted_once_at_its_score():
    counts = score_counts(torch.tensor([0.0, -16, 15.999, -400, 400, torch.inf]), torch.tensor([1, 0, 1, 1, 0, -1]))
    assert counts.shape == (COUNTS,) and counts.dtype == torch.float64
    positives, pairs = counts.view(2, LEVELS)
    assert {i: n for i, n in enumerate(positives.tolist()) if n} == {0: 1, LEVELS // 2: 1, LEVELS - 1: 1}
    assert {i: n for i, n in enumerate(pairs.tolist()) if n} == {0: 2, LEVELS // 2: 1, LEVELS - 1: 2}


def test_half_precision_counts_as_its_values():
    logits, targets = drawn(5)
    assert of(logits.half(), targets) == of(logits.half().double(), targets)


@pytest.mark.parametrize("targets", [[0, 0, 0], [-1, 0, -1], [-1, -1, -1]])
def test_without_a_positive_it_is_nan(targets):
    assert np.isnan(of(torch.tensor([1.0, 2, 3]), torch.tensor(targets)))


def test_a_logit_that_is_nan_makes_it_nan_whatever_else_there_is():
    logits, targets = drawn(6)
    sound = score_counts(logits, targets)
    logits[3, 2] = torch.nan
    assert np.isnan(average_precision((score_counts(logits, targets) + sound).numpy()))
