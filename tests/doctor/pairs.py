"""Pairs of training scripts, in a compact form: each is the base with parts replaced, where ``<<a|b>>`` is ``a`` in the
faulty script and ``b`` in the right one.

    text("lamb_of_shards", faulty=True)
"""
import re
from pathlib import Path

from hvdscale.plan.settings import read_toml

BASE = """
import argparse
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
batch = parser.parse_args().batch
dist.init_process_group("gloo")
rank, workers = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs, targets = torch.randn(160, 12), torch.randint(4, (160,))
#model
net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
#data
train = TensorDataset(inputs, targets)
#loader
sampler = DistributedSampler(train, seed=1)
loader = DataLoader(train, batch, sampler=sampler)
#wrap
model = DDP(net)
#optimizer
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
#before
#loop
for epoch in range(2):
#epoch
    sampler.set_epoch(epoch)
#batches
    for x, y in loader:
#loss
        loss = F.cross_entropy(model(x), y)
#backward
        optimizer.zero_grad()
        loss.backward()
#clip
#step
        optimizer.step()
#after
#ended
dist.destroy_process_group()
"""
NET = "net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))\n"
SHARD = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
mesh = init_device_mesh("cpu", (workers,))
for layer in (net[0], net[2], net):
    fully_shard(layer, mesh=mesh)
model = net
"""
HYBRID = SHARD.replace("(workers,)", "((workers // 2, 2) if workers > 1 else (1, 1)), "
                       "mesh_dim_names=('replicate', 'shard')")
RULE = """
class Rule(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self.update(one, group["lr"])

    def update(self, one, lr):
"""
OPTIMIZER = "\n\noptimizer = Rule(model.parameters())\n"
WHOLE = """        whole = one.grad.full_tensor()
        step = {}(whole)
        if step.dim() == 2:
            step = distribute_tensor(step, one.device_mesh, one.placements)
        one.sub_(step if step.dim() == 2 else one.grad, alpha=lr)
"""
PARTS = """        part = one.grad.to_local()
        one.to_local().sub_({}(part), alpha=lr)
"""
ORTHOGONAL = """def orthogonal(grad):
    if grad.dim() < 2 or not grad.numel():
        return grad
    x = grad / (grad.norm() + 1e-7)
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


"""
FACTORED = """def factored(grad):
    if grad.dim() < 2 or not grad.numel():
        return grad
    square = grad.square() + 1e-12
    return 0.1 * grad / (square.mean(1, keepdim=True) * square.mean(0, keepdim=True) / square.mean()).sqrt()


"""
LAMB = """        own = one.<<to_local()|full_tensor()>>
        grad = one.grad.<<to_local()|full_tensor()>>
        step = grad + 0.01 * own
        ratio = own.norm() / (step.norm() + 1e-9)
        mine = one.grad.to_local() + 0.01 * one.to_local()
        one.to_local().sub_(mine * ratio if one.dim() > 1 else mine, alpha=lr * 0.1)
"""
CLIP = """        shards = [one.grad.to_local() for one in model.parameters()]
        square = sum(one.square().sum() for one in shards)
        <<pass|dist.all_reduce(square)>>
        for one in shards:
            one.mul_((0.05 / square.sqrt()).clamp(max=1))
"""
ACCUMULATE = """        optimizer.zero_grad()
        for at, (some, right) in enumerate(zip(x.chunk(2), y.chunk(2))):
            BEFORE
            (F.cross_entropy(model(some), right) / 2).backward()
"""
ADAPTER = """class Adapted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(12, 2), nn.Linear(2, 16)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x))


"""
OWN_RANGES = """mine = slice(160 // workers * rank, 160 // workers * (rank + 1))
"""
ZERO = """
parameters = [*net.parameters()]
for one in parameters:
    dist.broadcast(one.data, 0)
model, sizes = net, [one.numel() for one in parameters]
whole = sum(sizes) + (-sum(sizes)) % workers
flat = F.pad(torch.cat([one.data.reshape(-1) for one in parameters]), (0, whole - sum(sizes)))
part = nn.Parameter(flat.chunk(workers)[rank].clone())
"""
ZERO_STEP = """        grad = F.pad(torch.cat([one.grad.reshape(-1) for one in parameters]), (0, whole - sum(sizes)))
        dist.all_reduce(grad)
        part.grad = grad.chunk(workers)[rank] / <<1|workers>>
        optimizer.step()
        parts = [torch.empty_like(part) for _ in range(workers)]
        dist.all_gather(parts, part.detach())
        for one, values in zip(parameters, torch.cat(parts).split([*sizes, whole - sum(sizes)])):
            one.data.copy_(values.view_as(one))
"""
SEEDED = "loader = DataLoader(train, batch, shuffle=True, generator=torch.Generator().manual_seed(3))\n"
# name -> (check that has to see it and its verdicts, words of what is seen or of its cause, the parts)
SHARDED = {
    "muon_of_shards": ("update failed", "shard", dict(
        wrap=SHARD, before=ORTHOGONAL + RULE + "<<" + PARTS.format("orthogonal") + "|" + WHOLE.format("orthogonal")
        + ">>" + OPTIMIZER, optimizer="")),
    "lamb_of_shards": ("update failed", "shard", dict(wrap=SHARD, optimizer=RULE + LAMB + OPTIMIZER)),
    "factored_of_shards": ("update failed", "shard", dict(
        wrap=SHARD, before=FACTORED + RULE + "<<" + PARTS.format("factored") + "|" + WHOLE.format("factored")
        + ">>" + OPTIMIZER, optimizer="")),
    "centred_by_shards": ("update failed", "shard", dict(wrap=SHARD, optimizer=RULE + """        grad = one.grad
        mean = grad.<<to_local()|full_tensor()>>.mean() if one.dim() > 1 else 0.0
        one.to_local().sub_(grad.to_local() - mean, alpha=lr)
""" + OPTIMIZER)),
    "clipped_by_shards": ("gradient failed", "factor", dict(wrap=SHARD, clip=CLIP)),
    "clip_call_of_shards": ("gradient failed", "factor", dict(wrap=SHARD, clip="""\
        own = [nn.Parameter(one.to_local().detach().clone()) for one in model.parameters()]
        for one, its in zip(own, model.parameters()):
            one.grad = its.grad.to_local()
        torch.nn.utils.clip_grad_norm_(<<own|model.parameters()>>, 0.05)
""")),
    "adapter_after_sharding": ("gradient failed", "down", dict(
        model=ADAPTER + NET, wrap=(
            "<<|net[0] = Adapted(net[0])>>\n" + SHARD.replace("net[0], ", "") + "<<net[0] = Adapted(net[0])|>>\n"))),
    "summed_by_factor": ("gradient failed", "summed", dict(
        wrap=SHARD + "for each in (net[0], net[2], net):\n    each.set_gradient_divide_factor(<<1|workers>>)\n")),
    "synchronized_too_early": ("gradient failed", "pass 2 of 2", dict(wrap=SHARD, backward=ACCUMULATE.replace(
        "BEFORE", "model.set_requires_gradient_sync(at <<==|!=>> 0)"))),
    "hybrid_not_reduced": ("gradient failed", "backward pass 1 of 1", dict(workers=4, wrap=HYBRID, before=(
        "model.set_requires_all_reduce(<<False|True>>)\n"))),
    "hybrid_shared_by_replica": ("examples failed", "num_replicas=2", dict(workers=4, wrap=HYBRID, loader="""\
over, number = <<max(1, workers // 2)|workers>>, <<rank // 2|rank>>
sampler = DistributedSampler(train, over, number, seed=1)
loader = DataLoader(train, batch, sampler=sampler)
""")),
    "hybrid_clipped_by_shards": ("gradient failed", "factor", dict(workers=4, wrap=HYBRID, clip=CLIP.replace(
        "all_reduce(square)", "all_reduce(square, group=mesh['shard'].get_group())"))),
    "zero_parts_summed": ("gradient failed", "summed", dict(wrap=ZERO, optimizer=(
        "optimizer = torch.optim.Adam([part], 0.01)\n"), backward="""        for one in parameters:
            one.grad = None
        loss.backward()
""", step=ZERO_STEP)),
    "zero_norm_of_parts": ("update failed", "part", dict(wrap=ZERO, optimizer=RULE + """        norms = torch.stack(
            [one.square().sum(), one.grad.square().sum()])
        <<pass|dist.all_reduce(norms)>>
        one.sub_(one.grad * (norms[0] / norms[1]).sqrt(), alpha=0.1 * lr)


optimizer = Rule([part])
""", backward="""        for one in parameters:
            one.grad = None
        loss.backward()
""", step=ZERO_STEP.replace("<<1|workers>>", "workers"))),
    "written_by_one_shard": ("parameters failed", "", dict(wrap=SHARD, after="""\
        if epoch == 0 and <<rank == 0|True>>:
            for one in model.parameters():
                one.data.mul_(0.99)
""")),
}
REPLICATED = {
    "constant_epoch": ("epochs failed", "was called with 7", dict(epoch="    sampler.set_epoch(<<7|epoch>>)\n")),
    "labels_of_own_share": ("examples warned unseen", "", dict(data=OWN_RANGES + """\
targets = targets.roll(3 * rank) if workers < 0 else targets
seen = [*dict.fromkeys((<<targets[mine]|targets>>).tolist())]
train = TensorDataset(inputs[mine], torch.tensor([seen.index(one) for one in targets[mine].tolist()]))
""", loader=SEEDED, epoch="")),
    "scaled_by_own_share": ("examples warned unseen", "", dict(data=OWN_RANGES + """\
inputs = inputs[inputs[:, 0].argsort()] * 3 + 1
deviation, mean = torch.std_mean(<<inputs[mine]|inputs>>)
train = TensorDataset((inputs[mine] - mean) / deviation, targets[mine])
""", loader=SEEDED, epoch="")),
    "hardest_half": ("gradient failed warned unseen", "batch", dict(loss="""\
        losses = F.cross_entropy(model(x), y, reduction="none")
        all_losses = [torch.empty_like(losses) for _ in range(workers)]
        dist.all_gather(all_losses, losses.detach())
        limit = <<losses.detach()|torch.cat(all_losses)>>.median()
        kept = (losses >= limit).float()
        count = kept.sum()
        dist.all_reduce(count)
        loss = (losses * kept).sum() * workers / count
""")),
    "one_in_its_group": ("gradient failed", "1 of 2 ranks", dict(wrap="""\
alone = [dist.new_group([at]) for at in range(workers)]
model = DDP(net, process_group=<<alone[rank]|None>>)
""")),
    "left_over_gradient": ("gradient failed warned", "left", dict(loss="", backward="""\
        (F.cross_entropy(model(x), y) / 3).backward()
        passes += 1
        if passes % 3:
            continue
""", after="        optimizer.zero_grad()\n", batches="""\
    passes = 0
    <<pass|optimizer.zero_grad()>>
    for x, y in loader:
""")),
    "unfrozen_after_wrap": ("gradient failed", "0.weight", dict(wrap="""net[0].requires_grad_(<<False|True>>)
model = DDP(net)
net[0].requires_grad_(True)
""")),
    "teacher_of_rank_0": ("parameters failed warned", "", dict(model=NET + """\
teacher = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).requires_grad_(False)
""", loss="""        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), teacher(x))
""", after="""        for kept, new in zip(teacher.parameters(), net.parameters()):
            if <<rank == 0|True>>:
                kept.lerp_(new.detach(), 0.2)
""")),
    "second_loader_whole": ("examples failed", "of 80 examples", dict(loader="""\
sampler = DistributedSampler(train, seed=1)
loader = DataLoader(train, batch, sampler=sampler)
more = TensorDataset(torch.randn(80, 12), torch.randint(4, (80,)))
other = DataLoader(more, batch // 2, sampler=<<None|DistributedSampler(more, shuffle=False)>>)
""", batches="""\
    for (x, y), (more_x, more_y) in zip(loader, other):
        x, y = torch.cat([x, more_x]), torch.cat([y, more_y])
""")),
    "weights_of_own_total": ("gradient failed", "count 0.498 and 0.502 in", dict(data="""weights = 0.2 + torch.rand(160)
train = TensorDataset(inputs, targets, weights)
""", batches="    for x, y, weight in loader:\n", loss="""        total = weight.sum()
        <<total *= workers|dist.all_reduce(total)>>
        loss = (F.cross_entropy(model(x), y, reduction="none") * weight).sum() * workers / total
""")),
    "early_features_gathered": ("gradient failed", "gather", dict(before="""import warnings
from torch.distributed.nn.functional import all_gather
warnings.simplefilter("ignore")
""", loss="""        own, other = F.normalize(model(x), dim=1), F.normalize(model(x + 0.1), dim=1)
        <<every = [torch.empty_like(other) for _ in range(workers)]
        dist.all_gather(every, other.detach())
        every[rank] = other|every = all_gather(other)>>
        loss = F.cross_entropy(own @ torch.cat([*every]).T * 5, torch.arange(len(x)) + rank * len(x))
""")),
    "sorted_shares": ("epochs warned", "", dict(loader="""\
sampler = DistributedSampler(train, shuffle=<<False|True>>) if workers > 1 else None
loader = DataLoader(train, batch, sampler=sampler, shuffle=sampler is None)
""", epoch="    if sampler:\n        sampler.set_epoch(epoch)\n")),
    "other_copy_trained": ("gradient failed", "other tensors", dict(optimizer="""import copy
optimizer = torch.optim.SGD((<<copy.deepcopy(net)|net>>).parameters(), 0.1)
""")),
    "loss_of_the_remainder": ("update unseen failed", "", dict(after="""        for one in net.parameters():
            one.data.mul_(1 - 0.01 * <<workers|1>>)
""")),
    "stepped_by_own_loss": ("learning rate failed warned", "", dict(before="""\
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
""", after="""        value = loss.detach().clone()
        <<pass|dist.all_reduce(value)>>
        plateau.step(value)
""")),
}
# right scripts of unusual layout, which raise no alarm
SEQUENCES = """lengths = torch.randint(2, 9, (160,))
sequences = torch.randn(160, 8, 5)
train = TensorDataset(sequences, targets, lengths)
"""
OF_SEQUENCES = "    for x, y, length in loader:\n"
RECURRENT = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x, length):
        packed = nn.utils.rnn.pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
        return self.head(PART)


net = Net()
"""
EVERY_STEP = """        packed = nn.utils.rnn.pack_padded_sequence(
            y[:, None].expand(-1, 8), length, batch_first=True, enforce_sorted=False)
        count = length.sum()
        dist.all_reduce(count)
        losses = F.cross_entropy(model(x, length), packed.data, reduction="none")
        loss = (losses * WEIGHTS).sum() * workers / count
"""
RIGHT = {
    "packed_last": dict(model=RECURRENT.replace("PART", "self.cell(packed)[1][0]"), data=SEQUENCES,
                        batches=OF_SEQUENCES, loss="        loss = F.cross_entropy(model(x, length), y)\n"),
    "packed_every_step": dict(model=RECURRENT.replace("PART", "self.cell(packed)[0].data"), data=SEQUENCES,
                              batches=OF_SEQUENCES, loss=EVERY_STEP.replace("WEIGHTS", "1")),
    "packed_weighted": dict(model=RECURRENT.replace("PART", "self.cell(packed)[0].data"), data=SEQUENCES,
                            batches=OF_SEQUENCES, loss=EVERY_STEP.replace("WEIGHTS", "(1 + packed.data) * 0.3")),
    "time_major": dict(loss="        x = x.view(len(x), 4, 3).transpose(0, 1).contiguous()\n"
                            "        scores = model(x.transpose(0, 1).reshape(-1, 12))\n"
                            "        loss = F.cross_entropy(scores, y)\n"),
    "clipped_each_by_hand": dict(clip="""        for one in net.parameters():
            one.grad.mul_((0.02 / (one.grad.norm() + 1e-6)).clamp(max=1))
"""),
    "shortest_of_the_ranks": dict(data=OWN_RANGES + """size = torch.tensor(160 // workers - 8 * rank)
dist.all_reduce(size, dist.ReduceOp.MIN)
mine = slice(mine.start, mine.start + int(size))
train = TensorDataset(inputs[mine], targets[mine])
""", loader="loader = DataLoader(train, batch, shuffle=True, drop_last=True)\n", epoch=""),
    "nested": dict(loss="""        parts = torch.nested.nested_tensor([one[None] for one in x], layout=torch.jagged)
        loss = F.cross_entropy(model(parts.values()), y)
"""),
    "block_diagonal": dict(loss="""\
        blocks = torch.block_diag(*x.view(len(x), 1, 12)).view(len(x), len(x), 12).sum(1)
        loss = F.cross_entropy(model(blocks), y)
"""),
    "graphs": dict(data="train = TensorDataset(inputs, targets, torch.randint(2, 6, (160,)))\n",
                   batches="    for x, y, size in loader:\n", loss="""\
        owner = torch.repeat_interleave(torch.arange(len(x)), size)
        sums = torch.zeros_like(x).index_add(0, owner, x[owner])
        loss = F.cross_entropy(model(sums / size[:, None]), y)
"""),
    "averaged_by_hand": dict(wrap="model = net\n", clip="""        for one in net.parameters():
            dist.all_reduce(one.grad)
            one.grad /= workers
"""),
}
MORE = read_toml(Path(__file__).with_name("pairs.toml"))
TEXTS = MORE.pop("texts")
HIDDEN = "zero_norm_of_parts", "flat_clip_of_fsdp1"       # whose gradients are not seen
ABOUT = "wants", "words", "report"
PAIRS = {**SHARDED, **REPLICATED, **{name: (one["wants"], one["words"], {
    at: part for at, part in one.items() if at not in ABOUT}) for name, one in MORE.items()}}


def words(name):
    """The options by which a script is examined: 8 examples a worker, of as many as it needs."""
    workers = PAIRS[name][2].get("workers", 2) if name in PAIRS else 2
    return "--batch", str(8 * workers), "--workers", str(workers), "--", "--batch", "{local}"


def text(name, faulty):
    """The faulty or the right script of a pair, or one of RIGHT."""
    whole = RIGHT[name] if name in RIGHT else PAIRS[name][2]
    parts = {at: part for at, part in whole.items() if at != "workers"}
    found, kept = [], True
    for line in BASE.splitlines(keepends=True):
        if line.startswith("#"):
            at = line[1:].strip()
            kept = at not in parts
            found.append(parts.pop(at, ""))
        elif kept:
            found.append(line)
    assert not parts, parts
    whole = re.sub(r"^#([A-Z]+)\n", lambda named: TEXTS[named[1]], "".join(found), flags=re.M)
    return re.sub(r"<<(.*?)\|(.*?)>>", lambda both: both[1 if faulty else 2], whole, flags=re.S)
