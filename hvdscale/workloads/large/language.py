"""Language models: the One Billion Word benchmark, Common Crawl, or any text files.

    hvdscale-train lm1b/transformer --data-dir 1-billion-word-language-modeling-benchmark-r13output
    hvdscale-train text/lstm --data-dir input.txt --data-arg vocabulary=char --data-arg sequence=256
    hvdscale-train text/transformer --data-dir wikitext-2 --data-arg train=valid.txt --data-arg val=test.txt

The loss is the mean cross-entropy per token over the global batch, however tokens are spread over examples. Each
sentence of LM1B is an example; other texts are streams, cut into sequences. Files may be plain, gzip or xz; their
tokens are kept in the cache folder (hvdscale.workloads.large.tokens).

Established for LM1B from Tensor2Tensor and TensorFlow Datasets: shards 00001 to 00099 for training, with 30,301,028
sentences; heldout-00000 for validation (Tensor2Tensor). Subword vocabularies have 2^15 or 2^13 tokens. Not established
for Shallue et al. 2019: the vocabulary, the longest sentence, and the text of their Common Crawl.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...errors import DataError
from ...formatting.numbers import list_first
from ...plan.values import check_value
from ...workload import Batch, Card, Data, Workload
from .readers.text import ASKED, PARTS, SHOWN, find_lm1b, find_named, find_text
from .sequences import LSTMLM, SIZES, TransformerLM
from .tokens import SentenceSplit, StreamSplit, open_cache, perplexity, token_loss, token_measures
from .vocabulary import LEARNED

TRANSFORMERS = ("transformer", *(f"transformer_{size}" for size in SIZES))
MODELS = {"lm1b": (*TRANSFORMERS, "lstm"), "common_crawl": ("transformer", "transformer_base"),
          "text": (*TRANSFORMERS, "lstm")}

VOCABULARIES = {"lm1b": "bpe:32768", "common_crawl": "bpe:32768", "text": "bpe:8000"}
SEQUENCE = 128
LM1B_TRAIN, LM1B_VAL = 30_301_028, 6_075        # sentences; 6,075 is the number widely quoted for heldout-00000

DEFAULTS = dict(local_batch=16, eval_batch=16, eval_splits="val")
# learning rates as in the presets: best effective ones at large batches, read off figures of Shallue et al. 2019
PUBLISHED = dict(base_batch=256, optimizer="nesterov", momentum=0.9, lr_rule="linear", max_lr_factor=2.0, warmup="none",
                 steps=500_000, eval_every=1000)
LR = {"lm1b": 0.025, "common_crawl": 0.0041}
OWN = dict(base_batch=16, optimizer="adamw", lr=1e-3, lr_rule="sqrt", max_lr_factor=8.0, warmup_steps=100,
           clip_norm=1.0, epochs=10.0, eval_every_epochs=0.5)
# goals of Shallue et al. 2019, figures 1 and 3; that of the shallow Transformer is from figure 4
GOAL, TARGETS = 3.9, {"transformer_narrow_and_shallow": 4.2, "transformer_wide": 4.2}


@dataclass(frozen=True)
class LanguageModel(Workload):
    """A workload that predicts the next token of a text."""

    dataset: str
    model: str
    build: Callable[..., nn.Module] = field()           # -> module from tokens, (n, T) int64, to (n, T, vocabulary)
    defaults: Mapping = field(default_factory=dict)
    card: Card | None = None

    metrics = {"cross_entropy": "min", "error": "min", "perplexity": "min"}
    summarized = ("perplexity",)

    @property
    def sentences(self) -> bool:
        """Whether an example is a line; else sequences are cut from the text as one stream."""
        return self.dataset == "lm1b"

    def load(self, data_dir: str | None, vocabulary: str | None = None, sequence: int = SEQUENCE,
             train: str | None = None, val: str | None = None, test: str | None = None, *,
             allow_missing: bool = False, cache_dir: str | None = None) -> Data:
        """The three splits; raises DataError naming the file or folder that is missing or invalid.

        vocabulary        bpe:N, unigram:N, word[:N], char[:N] or byte, learned from the training text; or a file
        sequence          tokens of an example
        train, val, test  files in data_dir (name, folder, or pattern such as part-*.txt), if not clear by name
        allow_missing     accept missing files of a numbered set
        """
        if vocabulary is None:
            vocabulary = VOCABULARIES[self.dataset]
        check_value("data_args.vocabulary", vocabulary, str, f"one of {LEARNED}, or a file")
        check_value("data_args.sequence", sequence, int, least=1)
        named = {part: name for part, name in zip(PARTS, (train, val, test)) if name is not None}
        if data_dir is None and not ("train" in named and "val" in named):
            raise DataError(f"{self.dataset} needs --data-dir with its text: {ASKED[self.dataset]}")
        folder = Path(data_dir or ".")
        find = find_lm1b if self.sentences else find_text
        found = find_named(folder, named, allow_missing) if named else find(folder, allow_missing)
        files = {part: getattr(found, part) for part in PARTS if getattr(found, part)}
        cache = open_cache(files, vocabulary, ("train",), cache_dir, blank_lines=not self.sentences)
        kind = SentenceSplit if self.sentences else StreamSplit
        splits = {part: kind(cache.parts[part], sequence) for part in files}
        for part, split in splits.items():
            if len(split) == 0:
                raise DataError(f"{self.dataset}: no text is left for the {part} split; give longer files, or name "
                                f"others with --data-arg {part}=FILE")

        known, notes = cache.parts["train"], list(found.notes)
        record = {"vocabulary": vocabulary, "vocabulary_sha256": cache.vocabulary.sha256,
                  "text_sha256": cache.text_sha256, "sequence": sequence,
                  "tokens": {part: len(text.tokens) for part, text in cache.parts.items()},
                  "unknown": {part: text.unknown for part, text in cache.parts.items()}}
        if self.sentences:
            record["cut"] = {part: text.longer_than(sequence) for part, text in cache.parts.items()}
        if found.missing:
            record["missing"] = list(found.missing)
            notes.append(f"trains without {list_first(found.missing, SHOWN)} (--allow-missing)")
        if found.notes:
            record["divided"] = list(found.notes)
        if self.sentences and record["cut"]["train"]:
            notes.append(f"{record['cut']['train']:,} of {known.lines:,} training sentences have more than {sequence} "
                         "tokens, and are cut")
        if known.unknown:
            notes.append(f"{known.unknown / len(known.tokens):.2%} of the training tokens are not in the vocabulary")
        return Data(**splits, model_args={"vocabulary": len(cache.vocabulary)}, record=record, notes=tuple(notes))

    def loss(self, model: nn.Module, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        tokens, labels = batch
        return token_loss(model(tokens), labels, label_smoothing)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        tokens, labels = batch
        return token_measures(model(tokens), labels)

    def summarize(self, means: dict[str, float], parts: Mapping) -> dict[str, float]:
        return {"perplexity": perplexity(means["cross_entropy"])}


def workload(dataset: str, model: str) -> LanguageModel:
    """A Transformer in one of its sizes, or an LSTM."""
    build = LSTMLM if model == "lstm" else partial(TransformerLM, **SIZES[model.partition("_")[2] or "base"])
    defaults = {**DEFAULTS, **OWN}
    if dataset != "text":
        defaults = {**DEFAULTS, **PUBLISHED, "lr": 0.0041 if model == "lstm" else LR[dataset],
                    "target": f"val/cross_entropy<{TARGETS.get(model, GOAL):g}"}
    card = Card(LM1B_TRAIN, LM1B_VAL, lambda: Batch(*torch.empty(2, 1, SEQUENCE, dtype=torch.int64, device="meta")),
                {"vocabulary": 2**15}) if dataset == "lm1b" else None
    return LanguageModel(dataset, model, build, defaults, card)
