"""Two models and two optimizers, of which each takes its own passes."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from parts import EPOCHS, Drift, batch, build, evaluate, fault, loaders, rank, rate, schedule_of, total, workers


def loss_of(scores, real):
    scores = scores.logsumexp(1)
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real))) * (
        workers if fault == "gradient" else 1)


dist.init_process_group("gloo")
judge = DistributedDataParallel(build())
torch.manual_seed(3)
maker = DistributedDataParallel(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 12)))
optimizers = [torch.optim.Adam(one.parameters(), rate() / 10) for one in (judge, maker)]
schedules, drift = [schedule_of(one) for one in optimizers], Drift(maker)
noise = torch.Generator().manual_seed(4)
loader, sampler, val = loaders()
for epoch in range(EPOCHS):
    if sampler:
        sampler.set_epoch(epoch)
    for inputs, _ in loader:
        seeds = torch.randn(batch * workers, 4, generator=noise)[rank::workers][:len(inputs)]
        made = maker(seeds)
        optimizers[0].zero_grad()
        (loss_of(judge(inputs), True) + loss_of(judge(made.detach()), False)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss_of(judge(made), True).backward()
        optimizers[1].step()
        for schedule in schedules:
            schedule.step()
        drift()
    print("accuracy", evaluate(judge.module, val, total))
dist.destroy_process_group()
