"""The loss and the metrics of models that give each token its likelihood.

logits are (n, T, vocabulary); labels are (n, T) int64, IGNORED where there is no token.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..workload import smoothed_cross_entropy
from .tokens import IGNORED


def token_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum over the tokens of the cross-entropy in nats, with label smoothing; and their number."""
    return smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing), (labels != IGNORED).sum()


def token_measures(logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """cross_entropy (nats, unsmoothed) and error (share of tokens that are not the likeliest one), as sums over the
    tokens and their number."""
    counted = labels != IGNORED
    logits, labels = logits[counted], labels[counted]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    cross_entropy = functional.cross_entropy(logits, labels, reduction="none").double().sum()
    errors = (logits.argmax(1) != labels).sum()
    return {"cross_entropy": (cross_entropy, len(labels)), "error": (errors, len(labels))}


def perplexity(cross_entropy: float) -> float:
    """Per token: e to the mean cross-entropy; inf where that is beyond all numbers."""
    with np.errstate(over="ignore"):
        return float(np.exp(cross_entropy))
