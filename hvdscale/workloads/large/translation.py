"""Translation of sentences from parallel text: Multi30k, or text laid out like WMT; scored by BLEU.

    hvdscale-train multi30k/transformer --data-dir DIR                            English to German
    hvdscale-train multi30k/transformer --data-dir DIR --data-arg pair=de-en --data-arg beam=4
    hvdscale-train wmt/transformer --data-dir DIR --data-arg train=europarl-v7.de-en --data-arg test=none

Line n of train.en and line n of train.de form a pair. Both languages share one vocabulary, learned from both sides of
the training text. Training pairs are padded to a fixed length, so a pair does not depend on its batch; longer pairs and
those with an empty side are left out. Validation and test use every pair, cut after 512 tokens.

BLEU (Papineni et al. 2002, ACL, P02-1040) is not a mean over sentences: it compares the n-grams of the whole corpus
with those of the references. So the n-grams are counted first, over batches and workers, and the score computed last.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import DataError, UsageError
from ...formatting.numbers import counted
from ...plan.shards import Visits
from ...plan.values import check_value
from ...system.importing import import_extra
from ...workload import Card, Data, Workload
from ..files import ENDINGS, describe_folder
from .readers.text import Text
from .sequences import TranslationTransformer
from .tokens import IGNORED, Encoded, open_cache, perplexity, shift_right, token_loss, token_measures
from .vocabulary import Vocabulary

MOST_EVALUATED = 512            # tokens of a validation or test sentence
BEYOND = 50                     # extra tokens of a translation over its source (Vaswani et al., section 6.1)
NO_TEST = "none"
ORDER = 4                       # of the longest n-grams
COUNTS = 2 * ORDER + 2          # matched n-grams, n-grams of the translations, their words, words of the references
SMOOTHING = "exp"
SIDES = ("source", "target")

ADAM = dict(optimizer="adam", beta1=0.9, beta2=0.98, epsilon=1e-9, lr_rule="sqrt", warmup_start_factor=0.0,
            decay="linear", label_smoothing=0.1, eval_splits="val", eval_every_epochs=1.0)


@dataclass(frozen=True)
class Corpus:
    """A data set's defaults, which data arguments override."""

    train: str                  # prefixes of file names, before the language
    val: str
    test: str
    pairs: tuple[int, int]      # published numbers of them in train and val
    vocabulary: str
    longest: int                # the most tokens of a training sentence


@dataclass(frozen=True)
class TranslationBatch:
    """n pairs of sentences."""

    source: Tensor          # (n, S) int64: tokens, end, padding
    inputs: Tensor          # (n, T) int64: begin, the target's tokens, padding
    labels: Tensor          # (n, T) int64: the target's tokens, end, then IGNORED
    references: References | None = None        # for validation and test

    def __len__(self) -> int:
        return len(self.source)


class References:
    """Reference lines of a batch, with the vocabulary that decodes tokens to such lines, and the beam of the search."""

    __slots__ = ("lines", "vocabulary", "beam")         # no __dict__, so to_device passes it on unchanged

    def __init__(self, lines: Sequence[str], vocabulary: Vocabulary, beam: int):
        self.lines, self.vocabulary, self.beam = lines, vocabulary, beam

    def of(self, pairs: Sequence[int]) -> References:
        return References([self.lines[pair] for pair in pairs], self.vocabulary, self.beam)


@dataclass(frozen=True)
class Pairs:
    """The examples of a split: pairs of sentences."""

    source: Encoded
    target: Encoded
    kept: np.ndarray        # (examples,) line numbers
    longest: int            # length that sentences are padded or cut to, end included
    fixed: bool             # pad to ``longest``; else only to the longest sentence of the batch
    references: References | None = None        # by line

    def __len__(self) -> int:
        return len(self.kept)

    def take(self, visits: Visits) -> TranslationBatch:
        lines = self.kept[visits.indices]
        source = self._padded(self.source, lines, self.source.special["pad"])
        labels = self._padded(self.target, lines, IGNORED)
        inputs = shift_right(labels, self.target.special["bos"], self.target.special["pad"])
        return TranslationBatch(*map(torch.from_numpy, (source, inputs, labels)),
                                self.references and self.references.of(lines))

    def count_tokens(self) -> int:
        return self.target.count_tokens(self.longest, self.kept)

    def first(self, examples: int) -> Pairs:
        return replace(self, kept=self.kept[:examples])

    @property
    def cut(self) -> int:
        """The number of sentences in the files longer than ``longest``."""
        return sum(side.longer_than(self.longest) for side in (self.source, self.target))

    def _padded(self, text: Encoded, lines: np.ndarray, fill: int) -> np.ndarray:
        rows, counts = text.of_lines(lines, self.longest, fill)
        return rows if self.fixed else np.ascontiguousarray(rows[:, :max(counts, default=0)])


@dataclass(frozen=True)
class Translation(Workload):
    """Translation by a Transformer of these ``sizes``; the loss is the mean over the target's tokens, ends included."""

    dataset: str
    model: str
    corpus: Corpus
    sizes: Mapping
    defaults: Mapping = field(default_factory=dict)

    metrics = {"cross_entropy": "min", "error": "min", "perplexity": "min", "bleu": "max"}
    summarized = ("perplexity", "bleu")
    parts = {"bleu_counts": COUNTS}

    @property
    def card(self) -> Card:
        """The published corpus with its default vocabulary and lengths; every pair is counted."""
        return Card(*self.corpus.pairs, lambda: TranslationBatch(
            *(torch.empty(1, self.corpus.longest + 1, dtype=torch.int64, device="meta") for _ in range(3))),
            {"vocabulary": int(self.corpus.vocabulary.partition(":")[2])})

    def load(self, data_dir: str | None, pair: str = "en-de", train: str | None = None, val: str | None = None,
             test: str | None = None, vocabulary: str | None = None, longest: int | None = None, beam: int = 1, *,
             cache_dir: str | None = None) -> Data:
        """The three splits; raises DataError naming the file that is missing or invalid.

        pair              SOURCE-TARGET, the suffixes of the files
        train, val, test  prefixes of the files; test may be none
        vocabulary        such as bpe:8000, or a file: see hvdscale.workloads.large.vocabulary
        longest           the most tokens of a training sentence
        beam              hypotheses kept in the search for a translation; 1: greedy
        """
        corpus, languages = self.corpus, re.fullmatch(r"([^-/]+)-([^-/]+)", str(pair))
        if not languages or languages[1] == languages[2]:
            raise UsageError(f"data_args.pair = {pair!r}: give two languages as SOURCE-TARGET, as the names of the "
                             "files end, such as en-de")
        longest = check_value("data_args.longest", corpus.longest if longest is None else longest, int, least=1)
        beam = check_value("data_args.beam", beam, int, least=1)
        prefixes = {"train": train or corpus.train, "val": val or corpus.val, "test": test or corpus.test}
        if data_dir is None:
            raise DataError(f"{self.dataset} needs --data-dir DIR with {prefixes['train']}.{languages[1]}, "
                            f"{prefixes['train']}.{languages[2]} and the others, plain, .gz or .xz")
        texts = {part: find_parallel(Path(data_dir), part, str(prefix), languages.groups())
                 for part, prefix in prefixes.items() if (part, prefix) != ("test", NO_TEST)}
        tokens = open_cache({f"{part}.{side}": [text] for part, sides in texts.items()
                             for side, text in zip(SIDES, sides)}, str(vocabulary or corpus.vocabulary),
                            [f"train.{side}" for side in SIDES], cache_dir=cache_dir)
        encoded = {part: [tokens.parts[f"{part}.{side}"] for side in SIDES] for part in texts}
        for part, (source, target) in encoded.items():
            if source.lines != target.lines:
                first, second = (text.path for text in texts[part])
                raise DataError(f"{first} has {source.lines} lines, but {second} has {target.lines}; line n of one "
                                "translates line n of the other, so they are not of one set, or one is cut short")
        pairs, left_out = _training(texts["train"], *encoded.pop("train"), longest)
        known = tokens.vocabulary
        held_out = {part: Pairs(source, target, np.arange(source.lines), MOST_EVALUATED, False, References(
            [line for lines, _ in texts[part][1].chunks() for line in lines], known, beam))
            for part, (source, target) in encoded.items()}
        special = {"vocabulary": len(known), "pad": known.pad, "begin": known.bos, "end": known.eos}
        reasons = {"empty": "with an empty side", "too_long": f"of more than {longest} tokens"}
        notes = tuple(f"trains without {counted(number, 'pair')} {reasons[why]}" for why, number in left_out.items()
                      if number)
        return Data(pairs, **held_out, model_args=special, notes=notes, record={
            "left_out": left_out, "vocabulary_sha256": known.sha256, "text_sha256": tokens.text_sha256,
            "bleu": signature(), "cut": {part: split.cut for part, split in held_out.items()}})

    def build(self, **model_args) -> nn.Module:
        return TranslationTransformer(**{**self.sizes, **model_args})

    def loss(self, model: nn.Module, batch: TranslationBatch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return token_loss(model(batch.source, batch.inputs), batch.labels, label_smoothing)

    def measure(self, model: nn.Module, batch: TranslationBatch) -> dict[str, object]:
        """token_measures with the true target as the decoder's input, and BLEU's counts, zero without references."""
        counts = torch.zeros(COUNTS, dtype=torch.float64)
        if batch.references:
            counts = bleu_counts(translations(model, batch), batch.references.lines)
        return {**token_measures(model(batch.source, batch.inputs), batch.labels), "bleu_counts": counts}

    def summarize(self, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
        return {"perplexity": perplexity(means["cross_entropy"]), "bleu": bleu(parts["bleu_counts"])}


def translations(model: TranslationTransformer, batch: TranslationBatch) -> list[str]:
    """The model's translations of a batch with ``references``, each at most BEYOND tokens longer than its source."""
    longest = ((batch.source != model.pad).sum(1) + BEYOND).tolist()
    tokens = model.decode(batch.source, max(longest), batch.references.beam).tolist()
    return [batch.references.vocabulary.decode(row[:most]) for row, most in zip(tokens, longest)]


def find_parallel(folder: Path, part: str, prefix: str, languages: Sequence[str]) -> list[Text]:
    """The files PREFIX.LANGUAGE of a split, source and target; raises DataError naming missing ones."""
    names = [f"{prefix}.{language}" for language in languages]
    paths = [next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)
             for name in names]
    if lacking := [f"{name} or {name}.gz" for name, path in zip(names, paths) if path is None]:
        raise DataError(f"{folder}: has no {' and no '.join(lacking)}; {describe_folder(folder)}. The prefix of the "
                        f"names is set by --data-arg {part}=PREFIX{f', or {NO_TEST}' if part == 'test' else ''}")
    return [Text(path) for path in paths]


def _training(texts: list[Text], source: Encoded, target: Encoded, longest: int) -> tuple[Pairs, dict[str, int]]:
    """The pairs to train on, and the numbers left out: with an empty side, or too long."""
    kept, first, empty, long = [], 0, 0, 0
    for sides in zip(source.lengths(), target.lengths()):
        counts = np.stack(sides) - 1                # without the end token
        is_empty, is_long = counts.min(0) == 0, counts.max(0) > longest
        empty, long = empty + int(is_empty.sum()), long + int((is_long & ~is_empty).sum())
        kept.append(first + np.flatnonzero(~is_empty & ~is_long))
        first += counts.shape[1]
    kept = np.concatenate(kept)
    if not len(kept):
        raise DataError(f"{texts[0].path}, {texts[1].path}: none of their {source.lines} pairs can be trained "
                        f"on: {empty} with an empty side, {long} of more than {longest} tokens (data_args.longest)")
    return Pairs(source, target, kept, longest + 1, True), {"empty": empty, "too_long": long}


WORKLOADS = {
    # pairs as in Multi30k's files; Transformer-tiny of Wu et al. 2021 (ACL), from its code LividWo/Revisit-MMT: 8,192
    # tokens a step (about 500 pairs), at most 8,000 steps, LR 0.005 at step 2,000, then falling with 1/sqrt(step); BLEU
    # 41.0 on tokenised test_2016_flickr with beam 5. LR 0.002 at 64 pairs was tried with a smaller model; budget and
    # target are our own
    "multi30k": Translation(
        "multi30k", "transformer", Corpus("train", "val", "test_2016_flickr", (29000, 1014), "bpe:8000", 40),
        dict(layers=4, width=128, hidden=256, heads=4, dropout=0.3),
        {**ADAM, "local_batch": 64, "base_batch": 64, "lr": 2e-3, "max_lr_factor": 2.5, "warmup_epochs": 1.0,
         "decay_epochs": 30.0, "epochs": 30.0, "eval_batch": 128, "target": "val/bleu>=30"}),
    # pairs of WMT 2014 German-English in Hugging Face's wmt/wmt14; the base model of Vaswani et al.: about 25,000
    # tokens of each language a step, 100,000 steps, peak LR at step 4,000, then falling with 1/sqrt(step). The target
    # is our own; not tried on WMT's text
    "wmt": Translation(
        "wmt", "transformer", Corpus("train", "newstest2013", "newstest2014", (4508785, 3000), "bpe:37000", 100),
        {}, {**ADAM, "local_batch": 64, "base_batch": 1024, "lr": 7e-4, "warmup_steps": 4000, "decay_steps": 100000,
             "steps": 100000, "eval_batch": 32, "target": "val/bleu>=20"})}
MODELS = {dataset: ("transformer",) for dataset in WORKLOADS}


def workload(dataset: str, model: str) -> Translation:
    """multi30k/transformer (4 layers of width 128), wmt/transformer (base of Vaswani et al.)."""
    return WORKLOADS[dataset]


def bleu_counts(translations: Sequence[str], references: Sequence[str]) -> Tensor:
    """Counts over these sentences, (10,) float64: integers, so sums are exact in any order. For n = 1 .. 4 the n-grams
    that match, then the n-grams of the translations, then the words of both."""
    if not translations:
        return torch.zeros(COUNTS, dtype=torch.float64)
    score = _metric().corpus_score(list(translations), [list(references)])
    return torch.tensor([*score.counts, *score.totals, score.sys_len, score.ref_len], dtype=torch.float64)


def bleu(counts: np.ndarray) -> float:
    *grams, words, reference_words = (int(count) for count in counts)
    if not reference_words:
        return float("nan")
    return _metric().compute_bleu(grams[:ORDER], grams[ORDER:], words, reference_words, SMOOTHING).score


def signature() -> str:
    """sacrebleu's signature of the score: tokenizer, smoothing, case and version."""
    return _metric().get_signature().format()


@cache
def _metric():
    package = import_extra("sacrebleu", "BLEU", refused=DataError)
    metric = package.BLEU(tokenize="13a", smooth_method=SMOOTHING, max_ngram_order=ORDER, force=True)
    metric.num_refs = 1                 # of a sentence, for the signature
    return metric
