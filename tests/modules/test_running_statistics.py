"""Buffers move once a step, by the mean over the ghost groups, whoever computes them."""
import pytest
import torch
from torch import nn

from hvdscale.modules import BatchNorm
from hvdscale.modules.running_statistics import Statistics


class Tracker(nn.Module):
    """Buffers of a user's own: a running mean, and a count of calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("calls", torch.tensor(5))

    def forward(self, x):
        self.mean = self.mean.lerp(x, 0.25)
        self.calls += 1
        return x


def moved(model, statistics, sums, groups):
    for x in groups:
        with statistics.group():
            model(x)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_buffers_of_a_users_own_move_by_the_mean_over_the_groups_in_any_order(order):
    model, xs = Tracker(), torch.tensor([[5.0, 0.0], [1.0, 8.0], [0.0, 1.0]])
    statistics = Statistics(model, group_by_group=True)
    sums = torch.zeros(statistics.size)
    statistics.collect_in(sums)
    moved(model, statistics, sums, [xs[i] for i in order])
    assert model.mean.tolist() == [1, 2] and model.calls == 5             # not before the sums are known
    statistics.merge(3)
    torch.testing.assert_close(model.mean, torch.tensor([1.0, 2.0]).lerp(xs.mean(0), 0.25))
    assert model.calls == 6 and model.calls.dtype == torch.int64


def test_the_sums_of_two_workers_make_what_one_makes():
    xs, models = torch.randn(4, 2), [Tracker() for _ in range(3)]
    shares, totals = [xs, xs[:1], xs[1:]], []
    collected = []
    for model, share in zip(models, shares):
        statistics = Statistics(model, group_by_group=True)
        sums = torch.zeros(statistics.size)
        statistics.collect_in(sums)
        moved(model, statistics, sums, share)
        collected.append((statistics, sums))
        totals.append(sums.clone())
    for statistics, sums in collected:
        sums.copy_(totals[0] if statistics is collected[0][0] else totals[1] + totals[2])
        statistics.merge(4)
    for model in models[1:]:
        torch.testing.assert_close(dict(model.state_dict()), dict(models[0].state_dict()))


def test_without_group_by_group_only_our_own_batch_norm_is_collected():
    model = nn.Sequential(BatchNorm(3), Tracker(), BatchNorm(2, track_running_stats=False))
    assert Statistics(model, group_by_group=False).size == 6
    assert Statistics(model, group_by_group=True).size == 6 + 3
    assert Statistics(nn.Linear(2, 2), group_by_group=True).size == 0
