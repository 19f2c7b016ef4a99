"""Sequence models make the same updates at any number of workers and passes, the mean being over tokens."""
import copy
from dataclasses import dataclass
from typing import Callable

import pytest
import torch
from torch.nn import functional

from hvdscale.plan.settings import Settings
from hvdscale.plan.settle import Place, settle
from hvdscale.update.optimizers import make_optimizer
from hvdscale.update.model import fit_to_groups, make_model
from hvdscale.update.step import DataParallelStep
from hvdscale.workers.group import SingleWorker
from hvdscale.workload import Data, Split, Workload
from hvdscale.workloads.large.sequences import LSTMLM, TransformerLM, TranslationTransformer
from tests.factories.workers import on_each

V, LONGEST, EXAMPLES, STEPS, CPU = 13, 7, 31, 20, torch.device("cpu")
SMALL = dict(layers=1, width=8, hidden=12, heads=2, dropout=0.3)
DEFAULTS = dict(lr=0.1, base_batch=12, global_batch=12, ghost_batch=4, optimizer="nesterov", momentum=0.9, steps=STEPS,
                precision="fp64")


def language_logits(model, tokens):
    return model(tokens[:, :-1])


def translation_logits(model, tokens):
    return model(tokens.flip(1), tokens[:, :-1])


@dataclass(frozen=True)
class Text(Workload):
    """Rows of 2 to LONGEST random tokens, filled up with 0; the mean is over the tokens that follow one of theirs."""

    dataset, metrics = "made", {"cross_entropy": "min"}
    model: str
    build: Callable
    logits: Callable = language_logits

    def load(self, data_dir=None):
        drawn = torch.Generator().manual_seed(3)
        tokens = torch.randint(1, V, (EXAMPLES, LONGEST), generator=drawn)
        lengths = torch.randint(2, LONGEST + 1, (EXAMPLES,), generator=drawn)
        tokens[torch.arange(LONGEST) >= lengths[:, None]] = 0
        return Data(Split(tokens, lengths), Split(tokens[:3], lengths[:3]))

    def loss(self, model, batch):
        tokens, lengths = batch
        logits, labels = self.logits(model, tokens), tokens[:, 1:]
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=0)
        return total, (lengths - 1).sum()


TEXTS = [Text("transformer", lambda: TransformerLM(V, **SMALL)),
         Text("lstm", lambda: LSTMLM(V, hidden=9, projection=5, embedding=7, dropout=0.3)),
         Text("translation", lambda: TranslationTransformer(V, **SMALL), translation_logits)]


def parameters_after_training(workload, workers, accumulate):
    """All parameters of each rank after the steps, and its losses."""
    settings = Settings.build(DEFAULTS, dict(accumulate=accumulate))
    plan = settle(settings, workload, EXAMPLES, 3, Place(workers, workers, workers))
    train, model = workload.load().train, make_model(workload, plan, CPU)
    plan, reason = fit_to_groups(plan, "auto", workload, train, model, CPU)
    assert not plan.group_by_group and not reason
    models = [copy.deepcopy(model) for _ in range(workers)]

    def trained(member):
        own = models[member.rank]
        step = DataParallelStep(plan, workload, train, own, make_optimizer(plan, own), member, CPU)
        losses = [step(number, plan.schedule.lr_at(number), set()).loss for number in range(STEPS)]
        return torch.nn.utils.parameters_to_vector(own.parameters()).detach(), losses
    return [trained(SingleWorker())] if workers == 1 else on_each(workers, trained)


@pytest.mark.parametrize("workload", TEXTS, ids=lambda workload: workload.model)
def test_updates_do_not_depend_on_workers_or_passes(workload):
    [(reference, losses)] = parameters_after_training(workload, 1, 1)
    assert losses[-1] != losses[0] and len(set(losses)) == STEPS
    for workers, accumulate in ((1, 2), (2, 2), (3, 1)):
        for parameters, other_losses in parameters_after_training(workload, workers, accumulate):
            assert (parameters - reference).norm() <= 1e-10 * reference.norm()
            assert other_losses == pytest.approx(losses, rel=1e-9)
