"""BLEU of translations, as sacrebleu computes it, from counts that add up over batches and workers.

    counts = bleu_counts(translations, references) + bleu_counts(others, their_references)
    score = bleu(counts)                        sacrebleu's score of all of them together

BLEU (Papineni et al. 2002, ACL, P02-1040) is not a mean over sentences: it compares the n-grams of the whole corpus
with those of the references. So the n-grams are counted first and the score is computed last.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ...system.importing import import_extra

ORDER = 4                       # of the longest n-grams
COUNTS = 2 * ORDER + 2          # matched n-grams, n-grams of the translations, their words, words of the references
TOKENIZER, SMOOTHING = "13a", "exp"


def bleu_counts(translations: Sequence[str], references: Sequence[str]) -> Tensor:
    """Counts over these sentences, (10,) float64: integers, so sums are exact in any order.

    For n = 1 .. 4 the n-grams that match the reference, then the n-grams of the translations, then the words of the
    translations and of the references. Raises DataError if sacrebleu is missing.
    """
    if not translations:
        return torch.zeros(COUNTS, dtype=torch.float64)
    score = _metric().corpus_score(list(translations), [list(references)])
    return torch.tensor([*score.counts, *score.totals, score.sys_len, score.ref_len], dtype=torch.float64)


def bleu(counts: np.ndarray) -> float:
    """BLEU, 0 .. 100, from the summed counts, (10,); NaN without references."""
    *grams, words, reference_words = (int(count) for count in counts)
    if not reference_words:
        return float("nan")
    return _metric().compute_bleu(grams[:ORDER], grams[ORDER:], words, reference_words, SMOOTHING).score


def signature() -> str:
    """sacrebleu's signature of the score: tokenizer, smoothing, case and version."""
    return f"nrefs:1|case:mixed|eff:no|tok:{TOKENIZER}|smooth:{SMOOTHING}|version:{_sacrebleu().__version__}"


@cache
def _metric():
    return _sacrebleu().BLEU(tokenize=TOKENIZER, smooth_method=SMOOTHING, max_ngram_order=ORDER, force=True)


def _sacrebleu():
    return import_extra("sacrebleu", "BLEU", refused=DataError)
