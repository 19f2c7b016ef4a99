"""Vocabularies: text to token ids and back; learned from text or read from a file.

    vocabulary = learn("bpe:8000", chunks_of_lines)     or unigram:N, word, word:N, char, char:N, byte
    vocabulary = read(Path("my.model"))                 a SentencePiece model, or a list of words or characters

Learned vocabularies and lists start with four special tokens: 0 <pad>, 1 <unk> (anything without a token), 2 <s> (start
of a line) and 3 </s> (end). A given model keeps its ids; missing special tokens are appended.
"""
from __future__ import annotations

import hashlib
import io
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import DataError, UsageError
from ...system.importing import import_extra

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
SPELLED = (*SPECIAL, "<PAD>", "<UNK>", "<S>", "</S>", "<bos>", "<eos>")        # in lists
BYTES = 256
SAMPLE = {"bpe": 2**24, "unigram": 2**21}        # most characters to learn from: minutes on one core
LONGEST = 1000                  # characters of a line to learn from; SentencePiece skips lines over 4,192 bytes
SAMPLE_SEED = 1811
MOST_COUNTED = 2**22            # distinct words counted at once
MOST_LISTED = 2**26             # bytes of a file that lists tokens
LEARNED = "bpe:8000, unigram:8000, word, word:10000, char, char:200 or byte"
# what SentencePiece is told of each kind; spaces keep its own tokens apart from words of the text spelled like them
TRAINED = {
    **dict.fromkeys(("bpe", "unigram"), dict(
        byte_fallback=True, character_coverage=0.9995, remove_extra_whitespaces=False)),
    "word": dict(input_format="tsv", character_coverage=1.0, unk_surface=" <unk>", pad_piece="<pad> ",
                 unk_piece="<unk> ", bos_piece="<s> ", eos_piece="</s> "),
    "char": dict(input_format="tsv", character_coverage=1.0, unk_surface="\N{REPLACEMENT CHARACTER}",
                 remove_extra_whitespaces=False, add_dummy_prefix=False)}


class Vocabulary:
    """Tokens 0 .. len-1, among them ``pad``, ``unk``, ``bos`` and ``eos``; can be pickled.

    encode(lines, threads)  the token ids of all lines, without special ones but ``unk``, and each line's number of
                            tokens: two arrays
    decode(ids)             the text of these tokens without special ones; ``unk`` is a visible character or word
    content, suffix         of the file that ``read`` reads
    """

    pad, unk, bos, eos = range(4)
    content: bytes
    suffix: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


class Pieces(Vocabulary):
    """Words, parts of them or characters by SentencePiece (Kudo & Richardson 2018, arXiv:1808.06226)."""

    suffix = ".model"

    def __init__(self, content: bytes):
        self.content = content
        model, new = self._model, itertools.count(len(self._model))     # ids of special tokens that the model has not
        self.unk = model.unk_id()
        self.pad, self.bos, self.eos = (known if known >= 0 else next(new) for known in (
            model.pad_id(), model.bos_id(), model.eos_id()))
        self._size = next(new)

    @cached_property
    def _model(self):
        return _sentencepiece().SentencePieceProcessor(model_proto=self.content)

    def __getstate__(self) -> dict:
        """Without what each process makes for itself."""
        return {name: value for name, value in vars(self).items() if name != "_model"}

    def __len__(self) -> int:
        return self._size

    def encode(self, lines, threads=1):
        found = self._model.encode(list(lines), out_type=int, num_threads=threads)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(itertools.chain.from_iterable(found), np.uint32, int(counts.sum())), counts

    def decode(self, ids):
        special = {self.pad, self.bos, self.eos}
        return self._model.decode([int(i) for i in ids if int(i) not in special])


class Bytes(Vocabulary):
    """The bytes of the text as UTF-8: 260 tokens, the special ones first."""

    content, suffix = b"bytes\n", ".txt"

    def __len__(self):
        return len(SPECIAL) + BYTES

    def encode(self, lines, threads=1):
        parts = [line.encode() for line in lines]
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8).astype(np.uint32) + len(SPECIAL), counts

    def decode(self, ids):
        return bytes(int(i) - len(SPECIAL) for i in ids if int(i) >= len(SPECIAL)).decode("utf-8", "replace")


def is_learned(wanted: str) -> bool:
    """Whether to learn this vocabulary, rather than read a file. Raises UsageError for one that cannot be learned."""
    kind, colon, number = wanted.partition(":")
    if kind not in (*TRAINED, "byte"):
        return False
    least = len(SPECIAL) + 1 + (BYTES if kind in SAMPLE else 0)
    if colon and kind != "byte":
        if not number.isdecimal() or int(number) < least:
            raise UsageError(f"vocabulary={wanted}: {kind}:N wants a whole number of at least {least} tokens, the "
                             f"special ones among them; the vocabularies are {LEARNED}, or a file")
    elif colon or kind in SAMPLE:
        raise UsageError(f"vocabulary={wanted}: give {'byte alone' if colon else f'its size, as {kind}:8000'}; the "
                         f"vocabularies are {LEARNED}, or a file")
    return True


def learn(wanted: str, chunks: Iterable[Sequence[str]]) -> Vocabulary:
    """Learn a vocabulary of this kind and size from chunks of lines, in bounded memory.

    bpe:N, unigram:N  from a reproducible random sample; what has no piece is spelled in bytes; nothing is normalized
    word:N, char:N    the N most frequent, including special tokens; without N all of them. Words are separated by
    spaces,
                      and one is <unk>, as in WikiText; others in a row that have no token are one ``unk``
    byte              needs no text

    Raises DataError if the text is too small for the size, naming a possible one; UsageError as ``is_learned`` does.
    """
    if not is_learned(wanted):
        raise UsageError(f"vocabulary={wanted}: must be one of {LEARNED}")
    kind, _, number = wanted.partition(":")
    if kind == "byte":
        return Bytes()
    if kind in SAMPLE:
        lines = sample(chunks, SAMPLE[kind])
        if any(map(str.strip, lines)):
            return _train(wanted, kind, lines, vocab_size=int(number))
    elif counts := _count(kind, chunks):
        most = len(counts) + len(SPECIAL)
        if number and int(number) > most:
            raise DataError(f"vocabulary={wanted}: {_too_high(kind, most)}")
        return _train_counted(wanted, kind, counts, int(number or most))
    raise DataError(f"vocabulary={wanted}: the text to learn it from is empty")


def read(path: Path) -> Vocabulary:
    """The vocabulary in a file: a SentencePiece model, or a list of tokens, one per line, special ones as <pad>, <unk>,
    ...

    A list is of words, or of characters if all are single and the file's name does not end in .words.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_LISTED + 1)
    except OSError as error:
        raise DataError(f"vocabulary={path}: is neither {LEARNED}, nor a file that can be read: "
                        f"{error.strerror}") from None
    if len(content) > MOST_LISTED:
        raise DataError(f"{path}: has more than {MOST_LISTED >> 20} MiB; it is not a vocabulary")
    return parse(content, path)


def parse(content: bytes, path: Path) -> Vocabulary:
    """Like ``read``, from the file's content."""
    if content == Bytes.content:
        return Bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text and not path.name.endswith(Pieces.suffix):
        return _parse_list(text, path)
    try:
        found = Pieces(content)
    except (RuntimeError, ValueError):
        raise DataError(f"{path}: is neither a SentencePiece model nor a list of tokens, one a line as UTF-8") from None
    if len(found) <= len(SPECIAL):
        raise DataError(f"{path}: is a SentencePiece model without pieces")
    return found


def sample(chunks: Iterable[Sequence[str]], most: int) -> list[str]:
    """A uniform random sample of the lines, in order, of at most ``most`` characters; reproducible.

    Lines whose random number is below a threshold are kept; it is halved while there are too many.
    """
    draw, bar, kept, size = random.Random(SAMPLE_SEED).random, 1.0, [], 0
    for line in _cut(chunks):
        number = draw()
        if number < bar:
            kept.append((number, line))
            size += len(line)
            while size > most:
                bar /= 2
                kept = [pair for pair in kept if pair[0] < bar]
                size = sum(len(line) for _, line in kept)
    return [line for _, line in kept]


def _cut(chunks: Iterable[Sequence[str]]) -> Iterator[str]:
    for lines in chunks:
        for line in lines:
            yield from (line[at:at + LONGEST] for at in range(0, len(line), LONGEST))


def _count(kind: str, chunks: Iterable[Sequence[str]]) -> dict[str, int]:
    """The count of each word or character; where there are too many, those met least are dropped."""
    counts, rarest = Counter(), 0
    for lines in chunks:
        if len(counts) > MOST_COUNTED:
            rarest += 1
            counts = Counter({token: count for token, count in counts.items() if count > rarest})
        counts.update(itertools.chain.from_iterable(
            line.replace("\t", " ").split(" ") if kind == "word" else line for line in lines))
    del counts[""]              # between two spaces
    return counts


def _train_counted(wanted: str, kind: str, counts: Mapping[str, int], size: int) -> Pieces:
    """Words or characters by these counts, which a tab separates: a character tab is given apart."""
    listed = [f"{token}\t{count}" for token, count in counts.items() if token != "\t"]
    return _train(wanted, kind, listed, vocab_size=size, required_chars="\t" if "\t" in counts else "")


def _train(wanted: str, kind: str, lines: list[str], **more) -> Pieces:
    package, model = _sentencepiece(), io.BytesIO()
    try:
        package.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=kind, normalization_rule_name="identity",
            pad_id=0, unk_id=1, bos_id=2, eos_id=3, num_threads=1, minloglevel=3, **TRAINED[kind], **more)
    except (RuntimeError, ValueError, OSError) as error:
        raise DataError(f"vocabulary={wanted}: {_why_not(kind, str(error))}") from None
    return Pieces(model.getvalue())


def _too_high(kind: str, most: int) -> str:
    return f"the text allows at most {most} tokens of this kind; ask for {kind}:{most} or fewer"


def _why_not(kind: str, error: str) -> str:
    high = re.search(r"too high .*<= (\d+)", error, re.DOTALL)
    if high and int(high[1]) > len(SPECIAL) + BYTES:
        return _too_high(kind, int(high[1]))
    low = re.search(r"smaller than required_chars\. \d+ vs (\d+)", error)
    if low:
        return (f"the text's characters, the 256 bytes and the special tokens need {low[1]} tokens; ask for "
                f"{kind}:{int(low[1]) + 1} or more")
    return f"SentencePiece cannot learn it from this text ({' '.join(error.split())}); try char or byte"


def _parse_list(text: str, path: Path) -> Pieces:
    tokens = text.removeprefix("\ufeff").split("\n")
    if tokens[-1] == "":
        tokens.pop()
    tokens = [token[:-1] if len(token) > 1 and token.endswith("\r") else token for token in tokens]
    if all(token in SPELLED for token in tokens):
        raise DataError(f"{path}: lists no tokens; a vocabulary has one a line")
    single = path.suffix != ".words" and all(len(token) == 1 or token in SPELLED for token in tokens)
    met: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        if not token or (not single and len(token.split()) != 1):
            hint = "; of the files that SentencePiece writes, give the .model" if "\t" in token else ""
            raise DataError(f"{path}: line {line} is {token[:40]!r}, not one word: a vocabulary has one a line{hint}")
        if met.setdefault(token, line) != line:
            raise DataError(f"{path}: line {line} has {token[:40]!r} again, after line {met[token]}; is it a "
                            "vocabulary? It has each token once")
    counts = {token: len(tokens) + 1 - line for token, line in met.items() if token not in SPELLED}   # in this order
    return _train_counted(str(path), "char" if single else "word", counts, len(counts) + len(SPECIAL))


def _sentencepiece():
    return import_extra("sentencepiece", "a vocabulary of pieces, words or characters", "vocabulary=byte does without",
                        refused=DataError)
