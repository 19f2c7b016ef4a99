"""What hvdscale-doctor script prints as the next move repairs the script: each edit is made from those words alone."""
import pytest

from tests.doctor import pairs
from tests.doctor.test_script import MARKED
from tests.factories import ddp_scripts

# script -> words of the next move, then the old and the new text of each edit
EDITED = {
    "no_sampler": ("in place of shuffle", "shuffle=True", "sampler=sampler"),
    "undivided": ("(loss / passes).backward()", "loss.backward()", "(loss / len(halves)).backward()"),
    "own_count": ("add it up over the ranks (dist.all_reduce) first; then multiply", "kept.sum()\n", (
        "kept.sum()\n    dist.all_reduce(count)\n"), ".sum() / count", ".sum() * workers / count"),
    "not_awaited": ("in DistributedDataParallel and call the wrapper", "ddp = model\n", (
        "ddp = DistributedDataParallel(model)\n"), "cross_entropy(model(", "cross_entropy(ddp("),
    "clipped_by_hand": ("clip what the reduction gives", "one.grad *= 0.1 / norm\n", "pass\n", "workers\n    opt", (
        "workers\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n    opt")),
    "reduced_again": ("reduce once an update", "        for one in model.parameters():\n            dist.all_reduce("
                      "one.grad)\n", "", "one.grad /= workers\n", "dist.all_reduce(one.grad.div_(workers))\n"),
    "stream": ("itertools.islice(examples, rank, None, workers)", "yield from train", "import itertools\n"
               "        yield from itertools.islice((train[at] for at in range(len(train))), rank, None, workers)"),
    "same_replacement": ("manual_seed(seed + rank)", "101, 50", (
        "101, 50, generator=torch.Generator().manual_seed(1 + rank)")),
    "one_rank": ("leave num_replicas and rank out", ", num_replicas=workers, rank=0", ""),
    "head_replaced": ("replace and unfreeze modules before", "model[2] = nn.Linear(16, 3)\n", "", "ddp = ", (
        "model[2] = nn.Linear(16, 3)\nddp = ")),
    "dropout": ("torch.manual_seed(seed + rank)", "ddp = ", "torch.manual_seed(1 + rank)\nddp = "),
    "hybrid_shared_by_replica": ("leave num_replicas and rank out", "(train, over, number, seed=1)", "(train, seed=1)"),
    "summed_by_factor": ("set_gradient_divide_factor out", "each.set_gradient_divide_factor(1)", "pass"),
    "second_loader_whole": ("sampler=DistributedSampler(dataset) in its loader", "=None", "=DistributedSampler(more)",
                            "range(2):\n", "range(2):\n    other.sampler.set_epoch(epoch)\n"),
}
# of a pair whose right twin is what the words say
TWINS = {
    "muon_of_shards": "grad.full_tensor()", "lamb_of_shards": "norms of whole parameters", "hardest_half": "all_gather",
    "clipped_by_shards": "dist.all_reduce(square)", "zero_parts_summed": "divide the sum by the number of workers",
    "adapter_after_sharding": "to DistributedDataParallel or fully_shard", "unfrozen_after_wrap": "unfreeze modules",
    "hybrid_not_reduced": "set these to True", "zero_norm_of_parts": "norms over all parts",
    "weights_of_own_total": "the sum of weights, and add it up", "teacher_of_rank_0": "on all ranks alike",
    "stepped_by_own_loss": "a loss that dist.all_reduce has combined", "one_in_its_group": "leave process_group out"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EDITED, *TWINS])
def test_the_next_move_repairs(examined, name):
    (words, *edits), paired = EDITED.get(name) or [TWINS[name]], name in pairs.PAIRS
    text, marked = (pairs.text(name, True), pairs.words(name)) if paired else (ddp_scripts.script(name), MARKED)
    _, out, *_ = examined(text, *marked)
    assert words in " ".join(out.split())
    for old, new in zip(edits[::2], edits[1::2]):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    code, out, err, verdicts = examined(pairs.text(name, False) if name in TWINS else text, *marked)
    assert code == (4 if name in pairs.HIDDEN else 0) and not {"FAILED", "warned"} & {*verdicts.values()}, out + err
