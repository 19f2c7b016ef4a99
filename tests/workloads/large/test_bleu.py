"""BLEU from counts that add up: what sacrebleu gives for the whole, however it is cut."""
import math
import random
import sys

import pytest
import torch

from hvdscale.errors import DataError
from hvdscale.workloads.large.translation import COUNTS, _metric, bleu, bleu_counts, signature

sacrebleu = pytest.importorskip("sacrebleu")

WORDS = ["Hund", "Ein", "läuft,", "der", "»Ball«", "3.5", "U.S.", "rot-grün", "&quot;", "的", "\u2028", "(x)", "!"]


def corpus(seed, n=40):
    """Translations that share most of their words with their references."""
    drawn = random.Random(seed)
    references = [" ".join(drawn.choices(WORDS, k=drawn.randint(0, 12))) for _ in range(n)]
    translations = [" ".join(word for word in line.split(" ") + drawn.choices(WORDS, k=1) if drawn.random() < 0.9)
                    for line in references]
    return translations, references


@pytest.mark.parametrize("seed", range(20))
def test_a_corpus_cut_anywhere_has_the_score_of_the_whole(seed):
    translations, references = corpus(seed)
    drawn = random.Random(seed + 100)
    bounds = sorted([0, len(references), *(drawn.randrange(len(references)) for _ in range(drawn.randrange(6)))])
    parts = [bleu_counts(translations[a:b], references[a:b]) for a, b in zip(bounds, bounds[1:])]
    drawn.shuffle(parts)
    whole = sacrebleu.corpus_bleu(translations, [references])
    assert whole.score > 10
    assert bleu(sum(parts).numpy()) == whole.score
    assert sum(parts).tolist() == [*whole.counts, *whole.totals, whole.sys_len, whole.ref_len]


@pytest.mark.parametrize("translations, references", [
    (["gar nichts davon"], ["Ein Hund"]), (["Ein"], ["Ein"]), ([""], ["Ein Hund"]), (["Ein Hund läuft"], [""]),
    (["Ein Hund läuft schnell"], ["Ein Hund rennt schnell"]), (["Ein Hund ."] * 200, ["Ein Hund."] * 200)])
def test_few_or_no_common_words_score_as_sacrebleu_has_it(translations, references, caplog):
    score = bleu(bleu_counts(translations, references).numpy())
    whole = sacrebleu.corpus_bleu(translations, [references], force=True)
    assert score == whole.score if whole.ref_len else math.isnan(score)
    assert not caplog.records


def test_a_perfect_translation_scores_a_hundred_and_no_sentences_have_no_score():
    references = corpus(0)[1]
    assert bleu(bleu_counts(references, references).numpy()) == pytest.approx(100)
    assert bleu_counts([], []).tolist() == [0.0] * COUNTS
    assert bleu_counts([], []).dtype == torch.float64
    assert math.isnan(bleu(bleu_counts([], []).numpy()))


def test_the_signature_is_sacrebleus_own():
    metric = sacrebleu.BLEU()
    metric.corpus_score(["Ein Hund"], [["Ein Hund"]])
    assert signature() == metric.get_signature().format()


def test_without_sacrebleu_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    _metric.cache_clear()
    with pytest.raises(DataError, match="cannot be imported .*: pip install sacrebleu"):
        signature()
