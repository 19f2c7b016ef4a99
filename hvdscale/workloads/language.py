"""Language models of text: the One Billion Word benchmark, Common Crawl, or any text files.

    hvdscale-train lm1b/transformer --data-dir 1-billion-word-language-modeling-benchmark-r13output
    hvdscale-train text/lstm --data-dir input.txt --data-arg vocabulary=char --data-arg sequence=256
    hvdscale-train text/transformer --data-dir wikitext-2 --data-arg train=valid.txt --data-arg val=test.txt

The loss is the mean cross-entropy per token over the global batch, however the tokens lie in its examples. Of LM1B each
sentence is an example, as its published size counts them; other texts are streams, cut into sequences. Files may be
plain, gzip or xz; their tokens are kept in the cache folder (hvdscale.workloads.tokens).

Established of LM1B from Tensor2Tensor's and TensorFlow Datasets' sources: the shards 00001 to 00099 for training, with
30,301,028 sentences; heldout-00000 for validation (Tensor2Tensor). Its subword vocabularies have 2^15 or 2^13 tokens;
which one Shallue et al. 2019 used, their longest sentence and the text of their Common Crawl could not be looked up.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import DataError, UsageError
from ..workload import Batch, Data, Workload
from .card import Card
from .models.lstm import LSTMLM
from .models.transformer import SIZES, TransformerLM
from .readers.text import Text, cut_in_order
from .token_metrics import perplexity, token_loss, token_measures
from .tokens import Cache, SentenceSplit, StreamSplit, open_cache
from .vocabulary import LEARNED

TRANSFORMERS = ("transformer", *(f"transformer_{size}" for size in SIZES))
MODELS = {"lm1b": (*TRANSFORMERS, "lstm"), "common_crawl": ("transformer", "transformer_base"),
          "text": (*TRANSFORMERS, "lstm")}
PARTS = ("train", "val", "test")

LM1B_TRAIN, LM1B_VAL = 30_301_028, 6_075        # sentences; 6,075 as widely quoted of heldout-00000
LM1B_FOLDERS = ("", "1-billion-word-language-modeling-benchmark-r13output")
LM1B_SHARDS, LM1B_HELD_OUT = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"

PACKED = r"(?:\.gz|\.xz)?"
SHARD = re.compile(r"news\.en-\d+-of-\d+" + PACKED)
HELD_OUT = re.compile(r"news\.en\.heldout-\d+-of-\d+" + PACKED)
NUMBERED = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)")
TEXT = re.compile(r"[^.].*?(?:\.txt|\.text|\.tokens|\.raw)" + PACKED, re.IGNORECASE)
NAMED = {"train": re.compile(r"(?:.*[._-])?train(?:ing)?(?:[._-].*)?", re.IGNORECASE),
         "val": re.compile(r"(?:.*[._-])?(?:val|valid|validation|dev)(?:[._-].*)?", re.IGNORECASE),
         "test": re.compile(r"(?:.*[._-])?test(?:[._-].*)?", re.IGNORECASE)}
SHOWN = 3               # names in a message

DEFAULTS = dict(local_batch=16, eval_batch=16, eval_splits="val")
# the rates are those of the presets: best effective rates at large batches, read off figures of Shallue et al. 2019
PUBLISHED = dict(base_batch=256, optimizer="nesterov", momentum=0.9, lr_rule="linear", max_lr_factor=2.0, warmup="none",
                 steps=500_000, eval_every=1000)
LR = {"lm1b": 0.025, "common_crawl": 0.0041}
LSTM_LR = 0.0041
OWN = dict(base_batch=16, optimizer="adamw", lr=1e-3, lr_rule="sqrt", max_lr_factor=8.0, warmup_steps=100,
           clip_norm=1.0, epochs=10.0, eval_every_epochs=0.5)
# goals of Shallue et al. 2019, figures 1 and 3; 3.9 of the shallow one is figure 4's
TARGETS = {"lm1b": {"transformer": 3.9, "transformer_base": 3.9, "transformer_shallow": 3.9, "lstm": 3.9,
                    "transformer_narrow_and_shallow": 4.2, "transformer_wide": 4.2},
           "common_crawl": {"transformer": 3.9, "transformer_base": 3.9}, "text": {}}


@dataclass(frozen=True)
class Corpus:
    """The files of a text.

    train, val, test  in order; no test files: no test split
    missing           names of files of a numbered set that are not there
    notes             how it was divided, where no names say so
    """

    train: Sequence[Text]
    val: Sequence[Text]
    test: Sequence[Text] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LanguageModel(Workload):
    """A ready-made workload: the next token of a text.

    find        (data_dir, allow_missing) -> the files
    sentences   whether each line is an example; else sequences are cut from the text as one stream
    vocabulary  tokens that the text is cut into, unless data arguments say otherwise;  sequence  of how many at once
    build       model arguments -> module from tokens, (n, T) int64, to logits (n, T, vocabulary)
    """

    dataset: str
    model: str
    find: Callable[[Path, bool], Corpus]
    sentences: bool
    vocabulary: str
    sequence: int
    build: Callable[..., nn.Module] = field()
    defaults: Mapping = field(default_factory=dict)
    card: Card | None = None

    metrics = {"cross_entropy": "min", "error": "min", "perplexity": "min"}
    summarized = ("perplexity",)

    def load(self, data_dir: str | None, vocabulary: str | None = None, sequence: int | None = None,
             train: str | None = None, val: str | None = None, test: str | None = None, *,
             allow_missing: bool = False, cache_dir: str | None = None) -> Data:
        """The three splits; raises DataError naming the file or folder that is not what it should be.

        vocabulary        bpe:N, unigram:N, word[:N], char[:N] or byte, learned from the training text; or a file
        sequence          tokens of an example
        train, val, test  files in data_dir (a name, a folder, a pattern as part-*.txt), where their names do not tell
        allow_missing     do without files of a numbered set that are not there
        """
        vocabulary, sequence = self._checked(vocabulary, sequence)
        named = {part: name for part, name in zip(PARTS, (train, val, test)) if name is not None}
        if data_dir is None and not ("train" in named and "val" in named):
            raise DataError(f"{self.dataset} needs --data-dir with its text: {ASKED[self.dataset]}")
        folder = Path(data_dir or ".").expanduser()
        corpus = find_named(folder, named, allow_missing) if named else self.find(folder, allow_missing)
        files = {part: getattr(corpus, part) for part in PARTS if getattr(corpus, part)}
        cache = open_cache(files, vocabulary, ("train",), cache_dir, blank_lines=not self.sentences)
        splits = {part: self._split(cache, part, sequence) for part in files}
        record = self._record(corpus, cache, vocabulary, sequence)
        return Data(**splits, model_args={"vocabulary": len(cache.vocabulary)}, record=record,
                    notes=self._notes(corpus, cache, record))

    def loss(self, model: nn.Module, batch: Batch, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Sum over the batch's tokens of the cross-entropy in nats, with label smoothing; and their number."""
        tokens, labels = batch
        return token_loss(model(tokens), labels, label_smoothing)

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """cross_entropy (nats, unsmoothed) and error (share of tokens that are not the likeliest one), as sums over
        the tokens and their number."""
        tokens, labels = batch
        return token_measures(model(tokens), labels)

    def summarize(self, means: dict[str, float], parts: Mapping) -> dict[str, float]:
        """Perplexity per token: e to the mean cross-entropy."""
        return {"perplexity": perplexity(means["cross_entropy"])}

    def _checked(self, vocabulary: str | None, sequence: int | None) -> tuple[str, int]:
        vocabulary = self.vocabulary if vocabulary is None else vocabulary
        sequence = self.sequence if sequence is None else sequence
        if not isinstance(vocabulary, str):
            raise UsageError(f"data_args.vocabulary = {vocabulary!r} is none of {LEARNED}, nor a file")
        if type(sequence) is not int or sequence < 1:
            raise UsageError(f"data_args.sequence = {sequence!r} is not a number of tokens, 1 or more")
        return vocabulary, sequence

    def _split(self, cache: Cache, part: str, sequence: int) -> StreamSplit | SentenceSplit:
        split = (SentenceSplit if self.sentences else StreamSplit)(cache.parts[part], sequence)
        if len(split) == 0:
            raise DataError(f"{self.dataset}: no text is left for the {part} split; give longer files, or name others "
                            f"with --data-arg {part}=FILE")
        return split

    def _record(self, corpus: Corpus, cache: Cache, vocabulary: str, sequence: int) -> dict:
        """What the log says of the text."""
        record = {"vocabulary": vocabulary, "vocabulary_sha256": cache.vocabulary.sha256,
                  "text_sha256": cache.text_sha256, "sequence": sequence,
                  "tokens": {part: len(text.tokens) for part, text in cache.parts.items()},
                  "unknown": {part: text.unknown for part, text in cache.parts.items()}}
        if self.sentences:
            record["cut"] = {part: text.longer_than(sequence) for part, text in cache.parts.items()}
        if corpus.missing:
            record["missing"] = list(corpus.missing)
        if corpus.notes:
            record["divided"] = list(corpus.notes)
        return record

    def _notes(self, corpus: Corpus, cache: Cache, record: Mapping) -> tuple[str, ...]:
        train, notes = cache.parts["train"], list(corpus.notes)
        if corpus.missing:
            notes.append(f"trains without {shown(corpus.missing)} (--allow-missing)")
        if self.sentences and record["cut"]["train"]:
            notes.append(f"{record['cut']['train']:,} of {train.lines:,} training sentences have more than "
                         f"{record['sequence']} tokens, and are cut")
        if train.unknown:
            notes.append(f"{train.unknown / len(train.tokens):.2%} of the training tokens are not in the vocabulary")
        return tuple(notes)


def find_lm1b(folder: Path, allow_missing: bool) -> Corpus:
    """The shards of LM1B: in the folder itself, or as the published archive lays them out.

    Validation is on the first held-out shard, testing on the second. Where there are none, the last training shard is
    held out, half for each.
    """
    if folder.is_file():
        raise DataError(f"{folder}: is a file; give {ASKED['lm1b']}")
    base = next((folder / name for name in LM1B_FOLDERS if (folder / name / LM1B_SHARDS).is_dir()), None)
    place = base / LM1B_SHARDS if base else folder
    shards = [path for path in _listed(place) if SHARD.fullmatch(path.name)]
    if not shards:
        raise DataError(f"{folder}: has no shards of LM1B; give {ASKED['lm1b']}; {_what_is_there(folder)}")
    shards, missing = complete(shards, allow_missing, first=1)
    for held_out in (base / LM1B_HELD_OUT if base else place, place.parent / LM1B_HELD_OUT):
        found = [path for path in _listed(held_out) if HELD_OUT.fullmatch(path.name)] if held_out.is_dir() else []
        if found:
            return _with_held_out(shards, found, missing)
    return replace(hold_out_last(shards), missing=missing)


def _with_held_out(shards: list[Path], held_out: list[Path], missing: tuple[str, ...]) -> Corpus:
    by_number = {int(NUMBERED.fullmatch(path.name)[2]): path for path in held_out}
    if 0 not in by_number:
        raise DataError(f"{held_out[0].parent}: lacks news.en.heldout-00000-of-00050, which validation is on; place it "
                        "there, or name another file with --data-arg val=FILE")
    test = [Text(by_number[1])] if 1 in by_number else []
    return Corpus([Text(path) for path in shards], [Text(by_number[0])], test, missing)


def find_text(folder: Path, allow_missing: bool) -> Corpus:
    """The files of a text: one file, which is cut; a folder whose files are named train, valid (val, dev) and test, in
    some way; or a folder of text files without such names, of which the last is held out."""
    if folder.is_file():
        return _cut(folder)
    files = [path for path in _listed(folder) if TEXT.fullmatch(path.name)]
    if any(pattern.fullmatch(path.name) for pattern in NAMED.values() for path in files):
        return find_named(folder, {}, allow_missing)
    if not files:
        raise DataError(f"{folder}: has no text file; give {ASKED['text']}; {_what_is_there(folder)}")
    files, missing = complete(files, allow_missing)
    corpus = _cut(files[0]) if len(files) == 1 else hold_out_last(files)
    return replace(corpus, missing=missing)


def find_named(folder: Path, named: Mapping[str, str], allow_missing: bool) -> Corpus:
    """The files that data arguments name, by part; of the parts that these leave out, others whose names say so."""
    files = {part: _named(folder, part, name) for part, name in named.items()}
    taken = {path.resolve() for paths in files.values() for path in paths}
    others = [path for path in (_listed(folder) if folder.is_dir() else [])
              if TEXT.fullmatch(path.name) and path.resolve() not in taken]
    for part in PARTS:
        if part not in named:
            files[part] = [path for path in others if NAMED[part].fullmatch(path.name)]
    _refuse_shared(files)
    for part, known in (("train", "train.txt"), ("val", "valid.txt")):
        if not files[part]:
            raise DataError(f"{folder}: has no file for the {part} split, such as {known}; name one with --data-arg "
                            f"{part}=FILE; {_what_is_there(folder)}")
    found = {part: complete(files[part], allow_missing) for part in PARTS}
    return Corpus(*([Text(path) for path in found[part][0]] for part in PARTS),
                  tuple(name for part in PARTS for name in found[part][1]))


def _refuse_shared(files: Mapping[str, Sequence[Path]]) -> None:
    """Raise DataError where a file is in two splits: named so twice, or by a name that says both, as train_val.txt."""
    parts: dict[Path, str] = {}
    for part in PARTS:
        for path in files[part]:
            if parts.setdefault(path.resolve(), part) != part:
                raise DataError(f"{path}: would be in both the {parts[path.resolve()]} and the {part} split; name "
                                f"another file with --data-arg {part}=FILE")


def _named(folder: Path, part: str, name: str) -> list[Path]:
    """The files that a data argument names: one, those of a folder, or those that a pattern fits."""
    path = folder / str(name)
    if path.is_dir():
        return _listed(path)
    is_pattern = not path.exists() and any(sign in path.name for sign in "*?[")
    found = sorted(path.parent.glob(path.name)) if is_pattern else [path]
    found = [path for path in found if path.is_file()]
    if not found:
        raise DataError(f"{path}: there is no such file, for --data-arg {part}={name}; {_what_is_there(path.parent)}")
    return found


def complete(files: Sequence[Path], allow_missing: bool, first: int = 0) -> tuple[list[Path], tuple[str, ...]]:
    """The files in order, and the names of those lacking of a numbered set (NAME-00003-of-00100), of which all from the
    first on are wanted. Raises DataError naming them, or files that do not belong together, unless they may be
    missing."""
    matches = [NUMBERED.fullmatch(path.name) for path in files]
    if not all(matches):
        _refuse_twins(files)
        return sorted(files), ()
    there, like = {}, {}
    for path, match in zip(files, matches):
        name, number, total = match[1], int(match[2]), int(match[3])
        if (name, number) in there:
            raise DataError(f"{path}: is the same part of the text as {there[name, number]}; leave one of them there")
        if like.setdefault(name, match)[3] != match[3]:
            raise DataError(f"{path}: is of a set of {total} files, and {like[name].string} of one of "
                            f"{int(like[name][3])}; leave one set there")
        there[name, number] = path
    missing = tuple(f"{name}{number:0{len(match[2])}d}-of-{match[3]}{match[4]}" for name, match in like.items()
                    for number in range(first, int(match[3])) if (name, number) not in there)
    if missing and not allow_missing:
        raise DataError(f"{files[0].parent}: lacks {shown(missing)}; place what is missing there, or train without it: "
                        "--allow-missing")
    return [there[key] for key in sorted(there)], missing


def _refuse_twins(files: Sequence[Path]) -> None:
    """Raise DataError where a file is there plain and packed, too: its text would be read twice."""
    known: dict[Path, Path] = {}
    for path in files:
        other = known.setdefault(path.with_name(re.sub(PACKED + "$", "", path.name)), path)
        if other is not path:
            raise DataError(f"{path}: is the same text as {other.name}, as its name says; leave one of them there")


def hold_out_last(files: Sequence[Path]) -> Corpus:
    """All files but the last for training, half of that for validation and half for testing."""
    if len(files) < 2:
        return _cut(files[0])
    val, test = cut_in_order(files[-1], 0.5)
    return Corpus([Text(path) for path in files[:-1]], [val], [test], notes=(
        f"{files[-1].name} is held out: its first half for validation, its second for testing",))


def _cut(path: Path) -> Corpus:
    train, val, test = cut_in_order(path)
    return Corpus([train], [val], [test], notes=(
        f"{path.name} is cut: its last bytes, from {val.start:,} on, are for validation, from {test.start:,} on for "
        "testing",))


def _listed(folder: Path) -> list[Path]:
    """The files in a folder, by name, without hidden ones; raises DataError where there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def _what_is_there(folder: Path) -> str:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return "there is no such folder"
    return f"it holds {shown(names)}" if names else "it is empty"


def shown(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


ASKED = {"lm1b": f"the folder that has {LM1B_SHARDS}/news.en-00001-of-00100 and the others, or these files themselves",
         "common_crawl": "a folder of text files (.txt, also .gz or .xz), or one file",
         "text": "a file, or a folder with train.txt, valid.txt and test.txt (.tokens, .text, .raw; also .gz or .xz)"}
FIND = {"lm1b": find_lm1b, "common_crawl": find_text, "text": find_text}
VOCABULARIES = {"lm1b": "bpe:32768", "common_crawl": "bpe:32768", "text": "bpe:8000"}
SEQUENCE = 128


def workload(dataset: str, model: str) -> LanguageModel | None:
    """A Transformer in one of its sizes, or an LSTM; None for another name."""
    if model not in MODELS[dataset]:
        return None
    size = model.partition("_")[2] or "base"
    build = LSTMLM if model == "lstm" else partial(TransformerLM, **SIZES[size])
    goal = TARGETS[dataset].get(model)
    defaults = {**DEFAULTS, **OWN} if dataset == "text" else {
        **DEFAULTS, **PUBLISHED, "lr": LSTM_LR if model == "lstm" else LR[dataset]}
    if goal:
        defaults["target"] = f"val/cross_entropy<{goal:g}"
    card = Card(LM1B_TRAIN, LM1B_VAL, _meta_batch, {"vocabulary": 2**15}) if dataset == "lm1b" else None
    return LanguageModel(dataset, model, FIND[dataset], dataset == "lm1b", VOCABULARIES[dataset], SEQUENCE, build,
                         defaults, card)


def _meta_batch() -> Batch:
    tokens = torch.empty(1, SEQUENCE, dtype=torch.int64, device="meta")
    return Batch(tokens, tokens)
