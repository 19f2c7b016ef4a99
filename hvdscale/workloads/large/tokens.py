"""Text as token ids in memory-mapped files, built once and cached; and the splits of a language model.

    cache = open_cache({"train": [Text(path)], "val": [Text(other)]}, "bpe:8000", learn_from=("train",))
    StreamSplit(cache.parts["train"], sequence=128)         sequences cut from one stream of tokens
    SentenceSplit(cache.parts["train"], sequence=64)        one example per line
    token_loss(logits, labels, label_smoothing)             (n, T, vocabulary); (n, T), IGNORED where there is no token

A cache folder is named by a key of everything that determines its content: the files' paths, sizes and times, and the
settings. One process per host builds it while the others wait. Text is read in chunks, so it may be of any size.
"""
from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...data.splits import Batch
from ...errors import DataError
from ...formatting.screen import Screen
from ...plan.shards import Visits
from ...system.cores import usable_cores
from ...system.files import new_file, whole_folder, write_whole
from ...system.inputs import input_text, open_input, read_input
from ...workload import smoothed_cross_entropy
from ..files import alone, cache_folder, reading
from .readers.text import Text
from .vocabulary import Vocabulary, is_learned, learn, parse, read

FORMAT = 2                  # of the cache folder; part of its key
MANIFEST, VOCABULARY = "manifest.json", "vocabulary"
STARTS = np.dtype("<i8")
IGNORED = -100              # the label that torch's losses ignore
CHUNK = 2**20               # lines whose lengths are read at once
MAPPED_BYTES = 2**26        # of a file mapped by a process before it releases them
AROUND = 2**20              # bytes that Linux may map around one that is read
EVERY_SECONDS = 5.0         # between lines of progress


class Mapped:
    """A one-dimensional array in a file, mapped by each process on first use. Pages are released at times: they stay in
    the system's file cache but do not count as the process's memory."""

    def __init__(self, path: Path, dtype: np.dtype, length: int):
        self.path, self.dtype, self.length = path, np.dtype(dtype), length
        self._mapped = 0

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_map"}

    def rows(self, starts: np.ndarray, width: int) -> np.ndarray:
        """The values at starts, starts + 1, ..., (n, width); indices outside the array give its first or last value."""
        found = np.frombuffer(self._map, self.dtype)[np.clip(starts[:, None] + np.arange(width), 0, self.length - 1)]
        self._mapped += len(starts) * (width * self.dtype.itemsize + AROUND)
        if self._mapped > MAPPED_BYTES:
            self._mapped = 0
            self._map.madvise(mmap.MADV_DONTNEED)
        return found

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            with open_input(self.path) as file:
                mapped = mmap.mmap(file.fileno(), self.length * self.dtype.itemsize, access=mmap.ACCESS_READ)
            mapped.madvise(mmap.MADV_RANDOM)
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path}: cannot be mapped into memory: {error}; run the command again to "
                            "rebuild the cache") from None
        return mapped


@dataclass(frozen=True)
class Encoded:
    """A text as tokens, line after line, each ended by ``eos``."""

    tokens: Mapped                  # ids of all lines
    starts: Mapped                  # start of each line, and the end of the last: lines + 1 values
    special: Mapping[str, int]      # the vocabulary's pad, unk, bos, eos
    vocabulary: int                 # its size
    unknown: int                    # number of ``unk`` tokens
    sha256: str                     # of the lines that it was made from, each ended by a line feed, as UTF-8

    @property
    def lines(self) -> int:
        return len(self.starts) - 1

    def at(self, starts: np.ndarray, counts: np.ndarray, width: int, fill: int) -> np.ndarray:
        """``counts`` tokens from each start on, the rest of the row filled: int64, shape (n, width)."""
        ids = self.tokens.rows(starts, width).astype(np.int64)
        if ids.size and ids.max() >= self.vocabulary:
            raise DataError(f"{self.tokens.path}: holds token {ids.max()} of a vocabulary of {self.vocabulary}; the "
                            f"cache is damaged, remove the folder {self.tokens.path.parent}")
        return np.where(np.arange(width) < counts[:, None], ids, fill)

    def of_lines(self, lines: np.ndarray, width: int, fill: int) -> tuple[np.ndarray, np.ndarray]:
        """The first tokens of these lines, (n, width), rows filled up; and each line's length with ``eos``, (n,)."""
        bounds = self.starts.rows(lines, 2)
        counts = bounds[:, 1] - bounds[:, 0]
        return self.at(bounds[:, 0], counts, width, fill), counts

    def longer_than(self, most: int) -> int:
        return sum(int((lengths > most).sum()) for lengths in self.lengths())

    def count_tokens(self, most: int, lines: np.ndarray | slice = slice(None)) -> int:
        """The tokens of these lines cut to ``most``, ``eos`` included."""
        kept = np.zeros(self.lines, bool)
        kept[lines] = True
        chosen = iter(np.split(kept, range(CHUNK, self.lines, CHUNK)))
        return sum(int(np.minimum(lengths[next(chosen)], most).sum()) for lengths in self.lengths())

    def lengths(self) -> Iterator[np.ndarray]:
        """The lengths of all lines, ``eos`` included, CHUNK at a time."""
        for first in range(0, self.lines, CHUNK):
            yield np.diff(self.starts.rows(np.array([first]), min(CHUNK, self.lines - first) + 1)[0])


@dataclass(frozen=True)
class Cache:
    """A vocabulary and the texts encoded with it, by name."""

    folder: Path
    vocabulary: Vocabulary
    parts: Mapping[str, Encoded]

    @property
    def text_sha256(self) -> str:
        """16 digits that identify the texts: a SHA-256 of the list that ``sha256sum`` prints for the parts."""
        listed = "".join(f"{text.sha256}  {name}\n" for name, text in self.parts.items())
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _TokenSplit:
    """Examples of at most ``sequence`` tokens of a text; ``examples``: the first of them, None: all."""

    text: Encoded
    sequence: int
    examples: int | None = None

    def __len__(self) -> int:
        return self._all_examples() if self.examples is None else self.examples

    def first(self, examples: int) -> _TokenSplit:
        return replace(self, examples=min(examples, len(self)))


class StreamSplit(_TokenSplit):
    """Sequences of T tokens cut from a text as one stream, which starts after an ``eos``; the last is padded."""

    def _all_examples(self) -> int:
        return -(-len(self.text.tokens) // self.sequence)

    def count_tokens(self) -> int:
        return min(len(self.text.tokens), len(self) * self.sequence)

    def take(self, visits: Visits) -> Batch:
        starts = visits.indices * self.sequence
        labels = self.text.at(starts, len(self.text.tokens) - starts, self.sequence, IGNORED)
        before = self.text.at(starts - 1, np.ones_like(starts), 1, IGNORED)[:, 0]
        first = np.where(starts == 0, self.text.special["eos"], before)
        return Batch(*map(torch.from_numpy, (shift_right(labels, first, self.text.special["pad"]), labels)))


class SentenceSplit(_TokenSplit):
    """The lines of a text, each predicted from ``bos`` to ``eos``; longer lines are cut, shorter ones padded."""

    def _all_examples(self) -> int:
        return self.text.lines

    def count_tokens(self) -> int:
        return self.text.count_tokens(self.sequence, slice(len(self)))

    def take(self, visits: Visits) -> Batch:
        labels, _ = self.text.of_lines(visits.indices, self.sequence, IGNORED)
        inputs = shift_right(labels, self.text.special["bos"], self.text.special["pad"])
        return Batch(*map(torch.from_numpy, (inputs, labels)))


def shift_right(labels: np.ndarray, first: np.ndarray | int, pad: int) -> np.ndarray:
    """A decoder's inputs, the token before each label: ``first`` in column 0, pad for IGNORED; (n, T) -> (n, T)."""
    inputs = np.empty_like(labels)
    inputs[:, 0], inputs[:, 1:] = first, labels[:, :-1]
    inputs[inputs == IGNORED] = pad
    return inputs


def open_cache(parts: Mapping[str, Sequence[Text]], vocabulary: str, learn_from: Sequence[str] = ("train",),
               cache_dir: str | None = None, blank_lines: bool = True) -> Cache:
    """The texts as tokens, from the cache, or encoded and stored there; raises DataError or UsageError.

    parts        name -> files, or parts of files, in order;  learn_from  those from which the vocabulary is learned
    vocabulary   as for vocabulary.learn, or a file for vocabulary.read
    blank_lines  False: blank lines are left out
    """
    given = None if is_learned(vocabulary) else read(Path(os.path.expanduser(vocabulary)))
    files = {name: [_identity(text) for text in texts] for name, texts in parts.items()}
    settings = {"format": FORMAT, "parts": files, "vocabulary": [given.sha256, given.suffix] if given else vocabulary,
                "learn_from": [] if given else list(learn_from), "blank_lines": blank_lines}
    root = cache_folder(cache_dir) / "tokens"
    place = root / _checksum(settings)[:24]
    if (found := _open(place)) is None:
        with _writing(root), alone(place):
            if _open(place) is None:       # another process may have made it in between
                _build(place, parts, blank_lines, given or vocabulary, learn_from)
        found = _open(place)
    if found is None:
        raise DataError(f"{place}: is not whole although it was just made; is something else writing or removing files "
                        "there? Name another folder: --set cache_dir=DIR")
    return found


def _checksum(values: dict) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _identity(text: Text) -> list:
    with reading(text.path):
        known = text.path.stat()
    return [str(text.path.resolve()), known.st_size, known.st_mtime_ns, text.start, text.stop]


def _open(place: Path) -> Cache | None:
    """The cache in this folder, if its manifest is valid and each file has the listed size."""
    with suppress(OSError, ValueError, KeyError, TypeError, DataError):
        manifest = json.loads(input_text(place / MANIFEST))
        if manifest.pop("sha256") != _checksum(manifest):
            return None
        content = read_input(place / manifest["vocabulary"]["file"])
        if hashlib.sha256(content).hexdigest() != manifest["vocabulary"]["sha256"]:
            return None
        vocabulary = parse(content, place / manifest["vocabulary"]["file"])
        special = {name: getattr(vocabulary, name) for name in ("pad", "unk", "bos", "eos")}
        parts = {}
        for number, known in enumerate(manifest["parts"]):
            tokens = Mapped(place / f"{number}.tokens", known["dtype"], known["tokens"])
            starts = Mapped(place / f"{number}.starts", STARTS, known["lines"] + 1)
            if any(file.path.stat().st_size != len(file) * file.dtype.itemsize for file in (tokens, starts)):
                return None
            parts[known["name"]] = Encoded(tokens, starts, special, len(vocabulary), known["unknown"], known["sha256"])
        return Cache(place, vocabulary, parts)
    return None


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"{root}: the tokens of the text do not fit there: {error.strerror}; what was written is "
                            "removed. Make room, or name another folder: --set cache_dir=DIR") from None
        raise DataError(f"{root}: the tokens of the text cannot be written there: {error.strerror}; name a folder that "
                        "can be written: --set cache_dir=DIR") from None


def _build(place: Path, parts: Mapping[str, Sequence[Text]], blank_lines: bool, vocabulary: Vocabulary | str,
           learn_from: Sequence[str]) -> None:
    """Write the cache and rename it; an error leaves nothing behind."""
    shutil.rmtree(place, ignore_errors=True)            # it is damaged
    try:
        with whole_folder(place) as folder:
            if isinstance(vocabulary, str):
                texts = [text for name in learn_from for text in parts[name]]
                vocabulary = learn(vocabulary, _lines(texts, blank_lines, f"vocabulary {vocabulary}"))
            name, dtype = VOCABULARY + vocabulary.suffix, np.dtype("<u2" if len(vocabulary) <= 2**16 else "<u4")
            write_whole(Path(folder, name), vocabulary.content)
            encoded = [_encode(Path(folder, str(number)), part, vocabulary, dtype,
                               _lines(texts, blank_lines, f"tokens of {part}"))
                       for number, (part, texts) in enumerate(parts.items())]
            manifest = {"vocabulary": {"file": name, "sha256": vocabulary.sha256, "tokens": len(vocabulary)},
                        "parts": encoded}
            manifest["sha256"] = _checksum(manifest)
            write_whole(Path(folder, MANIFEST), json.dumps(manifest, indent=1))
    except OSError:
        if _open(place) is None:            # else another host has built it; locks hold within a host only
            raise


def _encode(stem: Path, name: str, vocabulary: Vocabulary, dtype: np.dtype, chunks: Iterator[list[str]]) -> dict:
    """Write a part's tokens and line starts; returns its entry in the manifest."""
    known, text = {"name": name, "dtype": dtype.str, "tokens": 0, "lines": 0, "unknown": 0}, hashlib.sha256()
    threads = max(1, len(usable_cores()))           # the other ranks of the host wait meanwhile
    with new_file(f"{stem}.tokens") as tokens, new_file(f"{stem}.starts") as starts:
        starts.write(np.zeros(1, STARTS).tobytes())
        for lines in chunks:
            text.update("\n".join([*lines, ""]).encode())
            ids, counts = vocabulary.encode(lines, threads)
            ends = np.cumsum(counts + 1)
            ended = np.full(len(ids) + len(lines), vocabulary.eos, dtype)
            own = np.ones(len(ended), bool)
            own[ends - 1] = False
            ended[own] = ids
            tokens.write(ended.tobytes())
            starts.write((known["tokens"] + ends).astype(STARTS).tobytes())
            known["tokens"] += len(ended)
            known["lines"] += len(lines)
            known["unknown"] += int((ids == vocabulary.unk).sum())
    return {**known, "sha256": text.hexdigest()}


def _lines(texts: Sequence[Text], blank_lines: bool, doing: str) -> Iterator[list[str]]:
    """The lines of these texts in chunks; prints progress on stderr every few seconds, nothing for short work."""
    started, done, total = time.monotonic(), 0, sum(text.stored_bytes for text in texts)
    screen = Screen(sys.stderr, terminal=False, every=(0, EVERY_SECONDS), drawn=started)
    for text in texts:
        for lines, read_bytes in text.chunks():
            lines = lines if blank_lines else [line for line in lines if line.strip()]
            if lines:
                yield lines
            done, now = done + read_bytes, time.monotonic()
            if screen.due(now):
                screen.line(f"{doing}: {done / max(total, 1):.0%} of {total / 1e6:.0f} MB, "
                            f"{done / (now - started) / 1e6:.1f} MB/s", now)


def token_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    return smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing), (labels != IGNORED).sum()


def token_measures(logits: Tensor, labels: Tensor) -> dict[str, tuple[Tensor, int]]:
    counted = labels != IGNORED
    logits, labels = logits[counted], labels[counted]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    cross_entropy = functional.cross_entropy(logits, labels, reduction="none").double().sum()
    return {"cross_entropy": (cross_entropy, len(labels)), "error": ((logits.argmax(1) != labels).sum(), len(labels))}


def perplexity(cross_entropy: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(cross_entropy))
