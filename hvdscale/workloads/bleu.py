"""BLEU of translations, as sacrebleu computes it, from counts that add up over batches and workers.

    counts = bleu_counts(translations, references) + bleu_counts(others, their_references)
    score = bleu(counts)                        what sacrebleu gives for all of them at once

BLEU (Papineni et al. 2002, ACL, P02-1040) is no mean over sentences: it is made of the n-grams that a whole corpus
has in common with its references, so these are counted, and the score is taken last.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

ORDER = 4                       # the longest n-grams
COUNTS = 2 * ORDER + 2          # n-grams in common, n-grams of the translations, words of these, of the references
TOKENIZER, SMOOTHING = "13a", "exp"


def bleu_counts(translations: Sequence[str], references: Sequence[str]) -> Tensor:
    """The counts of these sentences, (10,) float64: whole numbers, so that their sums are exact in any order.

    First, for n = 1 .. 4, the n-grams that a translation has in common with its reference, then the n-grams of the
    translations, the words of the translations, the words of the references. Raises DataError where sacrebleu is
    missing.
    """
    if not translations:
        return torch.zeros(COUNTS, dtype=torch.float64)
    score = _metric().corpus_score(list(translations), [list(references)])
    return torch.tensor([*score.counts, *score.totals, score.sys_len, score.ref_len], dtype=torch.float64)


def bleu(counts: np.ndarray) -> float:
    """BLEU, 0 .. 100, of the sentences whose counts add up to these, (10,); NaN where there is no reference."""
    *grams, words, reference_words = (int(count) for count in counts)
    if not reference_words:
        return float("nan")
    return _metric().compute_bleu(grams[:ORDER], grams[ORDER:], words, reference_words, SMOOTHING).score


def signature() -> str:
    """How the score is taken, in sacrebleu's notation: tokens, smoothing, case and version."""
    return f"nrefs:1|case:mixed|eff:no|tok:{TOKENIZER}|smooth:{SMOOTHING}|version:{_sacrebleu().__version__}"


@cache
def _metric():
    return _sacrebleu().BLEU(tokenize=TOKENIZER, smooth_method=SMOOTHING, max_ngram_order=ORDER, force=True)


def _sacrebleu():
    try:
        import sacrebleu
    except ImportError as error:
        raise DataError(f"BLEU is computed by sacrebleu, which cannot be imported ({error}); "
                        "pip install sacrebleu") from None
    return sacrebleu
