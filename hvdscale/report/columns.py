"""Columns, sources and names that several tables share."""
from __future__ import annotations

from .table import Column

SHALLUE = "Shallue et al. 2019, arXiv 1811.03600"
POLLUX = "Qiao et al. 2021, arXiv 2008.12260"
MCCANDLISH = "McCandlish et al. 2018, arXiv 1812.06162, appendix A.1"
BATCH = Column("global_batch", "batch", "examples", "B: examples averaged into one step by all workers")
STEPS = Column("steps_to_target", "steps to target", "steps", "S: steps done at the first evaluation that meets the "
               "target, geometric mean over seeds, the median where a seed did not meet; of a search the median best "
               "of as many trials as every batch has", SHALLUE)
EXAMPLES = Column("examples_to_target", "examples to target", "examples", "B S", SHALLUE)
TOKENS = Column("tokens_to_target", "tokens to target", "tokens", "tokens that the loss counted in B S examples")
STATISTICAL = Column("statistical_efficiency", "statistical efficiency", "1", "(S0 B0) / (S B)", POLLUX, "stat. effic.")
SYSTEM = Column("system_efficiency", "system efficiency", "1", "(x / x0) / (W / W0)", "", "system effic.")
PERFECT = Column("perfect_scaling", "perfect scaling", "1", "B S within its tolerance of the smallest B S", SHALLUE)
NOISE = Column("noise_scale", "noise scale", "examples", "tr(Sigma) / |G|^2, each averaged over steps first; Fieller's "
               "interval, variances from differences of neighbouring measured steps", MCCANDLISH)
QUARTERS = tuple(Column(f"noise_scale_quarter_{at}", f"{word} quarter", "examples", "the noise scale over the "
                        f"{word} quarter of each run's measured steps", MCCANDLISH)
                 for at, word in enumerate(("first", "second", "third", "last"), 1))
SPLIT_NAMES = {"train": "training", "val": "validation"}


def metric_name(metric: str) -> str:
    """``validation error`` for val/error."""
    split, name = metric.split("/", 1)
    return f"{SPLIT_NAMES.get(split, split)} {name.replace('_', ' ')}"
