"""Loss and metrics of models that predict a distribution over tokens at each position.

logits are (n, T, vocabulary); labels are (n, T) int64, IGNORED where there is no token.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...workload import smoothed_cross_entropy
from .tokens import IGNORED


def token_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum of the tokens' cross-entropy in nats, with label smoothing, and the number of tokens."""
    return smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing), (labels != IGNORED).sum()


def token_measures(logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    """cross_entropy (nats, unsmoothed) and error (mispredicted tokens), as sums over tokens and their number."""
    counted = labels != IGNORED
    logits, labels = logits[counted], labels[counted]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    cross_entropy = functional.cross_entropy(logits, labels, reduction="none").double().sum()
    errors = (logits.argmax(1) != labels).sum()
    return {"cross_entropy": (cross_entropy, len(labels)), "error": (errors, len(labels))}


def perplexity(cross_entropy: float) -> float:
    """e to the mean cross-entropy per token; inf on overflow."""
    with np.errstate(over="ignore"):
        return float(np.exp(cross_entropy))
