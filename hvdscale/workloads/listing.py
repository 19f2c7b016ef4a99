"""What ``hvdscale-train --list`` prints: the built-in workloads with their sizes, and the presets.

The command prints a file, as the table takes seconds to make. After a change to workloads or presets:

    python -m hvdscale.workloads.listing > hvdscale/cli/workloads.txt
"""
from __future__ import annotations

import math

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..formatting.text_table import aligned
from ..plan import presets
from ..workload import Workload, build_model
from . import find, names

HEADINGS = ("workload", "parameters", "GFLOPs", "examples", "default target")
NOTES = """\
GFLOPs: forward pass and loss of one example, a multiply-add counted as 2; matrix products,
convolutions and attention only. examples: size of the published training split.
Models are those without --model-arg. WIDTH is a number, as in mnist/fc_1024_1024.
-: depends on a width, or on your own text."""


def listing() -> str:
    """The workloads as a table, notes on its numbers, and the presets, in at most 100 columns."""
    recipes = [(name, presets.read_config(name)[1], presets.title(name)) for name in presets.names()]
    return "\n".join([
        *aligned([HEADINGS, *map(list_workload, names())], left=(0, 4)), "", NOTES, "",
        "presets, for --config:", *aligned([(f"  {name}", workload) for name, workload, _ in recipes], left=(0, 1))])


def list_workload(name: str) -> tuple[str, str, str, str, str]:
    workload = find(example(name))
    card, target = workload.card, workload.defaults.get("target", "-")
    examples = "-" if card is None else format_count(card.train_examples)
    if card is None or name != example(name):
        return name, "-", "-", examples, target
    parameters, flops = counts(workload)
    return name, f"{parameters:,}", format_rounded(flops / 1e9), examples, target


def example(name: str) -> str:
    """A name that ``find`` accepts for one that contains WIDTH."""
    return name.replace("[_WIDTH...]", "").replace("WIDTH", "1024")


def counts(workload: Workload) -> tuple[int, int]:
    """The model's trainable parameters, and the operations of loss and forward pass of one example."""
    with torch.device("meta"):
        model = build_model(workload, workload.card.model_args).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as operations:
        workload.loss(model, workload.card.batch())
    return sum(p.numel() for p in model.parameters() if p.requires_grad), operations.get_total_flops()


def format_count(number: int) -> str:
    return f"{number:,}" if number < 1e9 else f"{number / 1e9:.3g} billion"


def format_rounded(value: float) -> str:
    decimals = 2 - math.floor(math.log10(value)) if value else 0
    return f"{value:,.{min(6, max(0, decimals))}f}"


if __name__ == "__main__":
    print(listing())
