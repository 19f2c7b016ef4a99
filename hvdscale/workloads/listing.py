"""What ``hvdscale-train --list`` prints: the built-in workloads with their sizes, and the presets.

    print(listing())
"""
from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..formatting.text_table import aligned
from ..plan import presets
from ..workload import Workload, build_model
from . import find, names

HEADINGS = ("workload", "parameters", "GFLOPs", "examples", "default target")
NOTES = """\
GFLOPs: of the forward pass and the loss of one example, a multiply-add as 2; of matrix products,
convolutions and attention. examples: those of the published training split.
Models are those without --model-arg. WIDTH stands for a number, as in mnist/fc_1024_1024.
-: depends on a width, or on a text of one's own."""


def listing() -> str:
    """The workloads as a table, what its numbers are, and the presets, in at most 100 columns."""
    recipes = [(name, presets.load(name)[1], presets.title(name)) for name in presets.names()]
    return "\n".join([
        *aligned([HEADINGS, *map(row, names())], left=(0, 4)), "", NOTES, "",
        "presets, for --config:", *aligned([(f"  {name}", workload) for name, workload, _ in recipes], left=(0, 1))])


def row(name: str) -> tuple[str, str, str, str, str]:
    """A workload's entries under the headings; - for what is not known, or depends on a width."""
    workload = find(example(name))
    card, target = workload.card, workload.defaults.get("target", "-")
    examples = "-" if card is None else whole(card.train_examples)
    if card is None or name != example(name):
        return name, "-", "-", examples, target
    parameters, flops = counts(workload)
    return name, f"{parameters:,}", rounded(flops / 1e9), examples, target


def example(name: str) -> str:
    """A name that ``find`` takes, for one with WIDTH in it."""
    return name.replace("[_WIDTH...]", "").replace("WIDTH", "1024")


def counts(workload: Workload) -> tuple[int, int]:
    """How many numbers the model trains, and the operations of the forward pass and the loss of one example.

    A multiply-add is two operations; matrix products, convolutions and attention count. Nothing is computed: the model
    and the example are on the meta device, of shapes alone.
    """
    with torch.device("meta"):
        model = build_model(workload, workload.card.model_args).eval()
    with torch.no_grad(), _Operations() as operations:
        workload.loss(model, workload.card.batch())
    return sum(p.numel() for p in model.parameters() if p.requires_grad), operations.total


class _Operations(TorchDispatchMode):
    """Adds up the operations of what is computed within, by the formulas of torch's own FlopCounterMode.

    That one loads torch's compiler, too, which takes seconds.
    """

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def whole(number: int) -> str:
    """A whole number, from a billion on in three figures."""
    return f"{number:,}" if number < 1e9 else f"{number / 1e9:.3g} billion"


def rounded(value: float) -> str:
    """Three figures, but no more than six decimals."""
    decimals = 2 - math.floor(math.log10(value)) if value else 0
    return f"{value:,.{min(6, max(0, decimals))}f}"
