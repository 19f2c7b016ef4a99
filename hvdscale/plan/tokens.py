"""Keys in tokens, as keys in examples: tokens are what the loss counts, never padding.

The training set has T tokens in D examples. A length in tokens is the length in examples at their mean, T / D tokens an
example: exact over whole epochs, and everywhere where all examples have the same number. So budgets, evaluations and
batches stay functions of the step, and the order of the examples plays no part.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import PlanError
from .settings import DECAYS_PER_STEP, Settings

# keys in tokens, each with that in examples
IN_EXAMPLES = {"tokens": "examples", "eval_every_tokens": "eval_every_examples",
               "batch_schedule_tokens": "batch_schedule_examples",
               **{f"{name}_half_life_tokens": f"{name}_half_life" for name in (*DECAYS_PER_STEP, "average")}}


def count_in_examples(settings: Settings, workload: str, train_examples: int, train_tokens: int | None) -> Settings:
    """The settings with every key in tokens turned into that in examples.

    train_tokens  of the training set; None: the workload counts examples
    Raises PlanError naming a key in tokens of a workload that counts none.
    """
    given = [name for name in IN_EXAMPLES if getattr(settings, name) is not None]
    if not given:
        return settings
    if not train_tokens:
        name = given[0]
        raise PlanError(f"{name} = {getattr(settings, name)}: {workload} counts examples, not tokens; give "
                        f"{IN_EXAMPLES[name]}, or let its training split count its tokens (count_tokens)")
    each = train_tokens / train_examples
    return Settings.build(*(_in_examples(layer, each) for layer in settings.layers))


def _in_examples(layer: Mapping[str, Any], tokens_each: float) -> dict[str, Any]:
    return {IN_EXAMPLES.get(name, name): value if name not in IN_EXAMPLES or value is None else
            _divide(name, value, tokens_each) for name, value in layer.items()}


def _divide(name: str, value: Any, tokens_each: float) -> Any:
    if name == "tokens":
        return max(1, math.ceil(value / tokens_each - 1e-6))
    if name == "batch_schedule_tokens":
        return [[start / tokens_each, batch] for start, batch in value]
    return value / tokens_each
