"""What is known of a workload before its data is read: the published sizes, and the shape of one example.

    card = workload.card                                       None where nothing is published
    model = build_model(workload, card.model_args)             on the meta device, say
    total, count = workload.loss(model, card.batch())          its shapes, and so its floating-point operations
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Card:
    """The published facts of a data set, as a workload loads it.

    train_examples, val_examples   sizes of the train and of the validation split
    batch                          gives a batch of one example on the meta device, as a split's ``take`` would
    model_args                     the arguments of build that the published data determines, {"vocabulary": 32000}
    """

    train_examples: int
    val_examples: int
    batch: Callable[[], object]
    model_args: dict = field(default_factory=dict)
