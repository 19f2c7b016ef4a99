"""Vocabularies: text to token ids and back; learned from text or read from a file.

    vocabulary = learn("bpe:8000", chunks_of_lines)     or unigram:N, word, word:N, char, char:N, byte
    vocabulary = read(Path("my.model"))                 a SentencePiece model, or a list of words or characters
    ids, counts = vocabulary.encode(["one line", "another"])
    vocabulary.decode(ids)

Learned vocabularies start with four special tokens: 0 <pad>, 1 <unk> (anything without a token), 2 <s> (start of a
line) and 3 </s> (end). A given vocabulary keeps its ids; missing special tokens are appended.
"""

import hashlib
import io
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ...errors import DataError, UsageError
from ...system.importing import import_extra
from ...system.inputs import open_input, refusal

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
SPELLED = {"<pad>": 0, "<PAD>": 0, "<unk>": 1, "<UNK>": 1, "<s>": 2, "<S>": 2, "<bos>": 2,
           "</s>": 3, "</S>": 3, "<eos>": 3}
BYTES = 256
SAMPLE = {"bpe": 2**24, "unigram": 2**21}        # most characters to learn from: minutes on one core
LONGEST = 1000                  # characters of a line to learn from; SentencePiece skips lines over 4,192 bytes
SAMPLE_SEED = 1811
MOST_COUNTED = 2**22            # distinct words counted at once
MOST_LISTED = 2**26             # bytes of a file that lists tokens
WORDS = ".words"                # ends the name of a file of words, so that those of one letter are no characters
LEARNED = "bpe:8000, unigram:8000, word, word:10000, char, char:200 or byte"


class Vocabulary:
    """Tokens 0 .. len-1, among them ``pad``, ``unk``, ``bos`` and ``eos``; can be pickled.

    encode(lines, threads=1)  the concatenated token ids of all lines, and each line's number of tokens: two integer
                              arrays. No special token except ``unk`` is inserted. threads: used where they can be
    decode(ids)               the text of these tokens without special ones; ``unk`` becomes a visible character
    """

    pad, unk, bos, eos = range(4)
    content: bytes          # of its file, which ``read`` reads
    suffix = ".txt"         # of that file's name

    @property
    def sha256(self) -> str:
        """The file's checksum: vocabularies with the same checksum and suffix encode alike."""
        return hashlib.sha256(self.content).hexdigest()


class Pieces(Vocabulary):
    """Parts of words by SentencePiece (Kudo & Richardson 2018, arXiv:1808.06226), from the bytes of its model."""

    suffix = ".model"

    def __init__(self, content: bytes):
        self.content = content
        self._model = model = _sentencepiece().SentencePieceProcessor(model_proto=content)
        new = itertools.count(len(model))           # for special tokens that the model has not
        self.unk = model.unk_id()
        self.pad, self.bos, self.eos = (known if known >= 0 else next(new) for known in (
            model.pad_id(), model.bos_id(), model.eos_id()))
        self._size = next(new)

    def __len__(self) -> int:
        return self._size

    def encode(self, lines, threads=1):
        found = self._model.encode(list(lines), out_type=int, num_threads=threads)
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(itertools.chain.from_iterable(found), np.uint32, int(counts.sum())), counts

    def decode(self, ids):
        special = {self.pad, self.bos, self.eos}
        return self._model.decode([int(i) for i in ids if int(i) not in special])


class Listed(Vocabulary):
    """A list of tokens in order, special ones included or appended; the file has one per line. They are words,
    separated by white space, or else characters. <unk> in the text, as in WikiText, is ``unk``."""

    def __init__(self, tokens: Sequence[str], words: bool):
        self.tokens, self.words = list(tokens), words
        self.suffix = WORDS if words else ".txt"
        known = {SPELLED[token]: place for place, token in reversed(list(enumerate(self.tokens))) if token in SPELLED}
        for number, token in enumerate(SPECIAL):
            if number not in known:
                known[number] = len(self.tokens)
                self.tokens.append(token)
        self.pad, self.unk, self.bos, self.eos = (known[number] for number in range(len(SPECIAL)))
        self._ids = {token: place for place, token in enumerate(self.tokens) if token not in SPELLED}

    def __len__(self):
        return len(self.tokens)

    @property
    def content(self):
        return "".join(f"{token}\n" for token in self.tokens).encode()

    def encode(self, lines, threads=1):
        units = [line.split() for line in lines] if self.words else lines
        counts = np.fromiter(map(len, units), np.int64, len(units))
        find, unk = self._ids.get, self.unk
        ids = (find(unit, unk) for unit in itertools.chain.from_iterable(units))
        return np.fromiter(ids, np.uint32, int(counts.sum())), counts

    def decode(self, ids):
        hidden = {self.pad, self.bos, self.eos}
        joint, unknown = (" ", self.tokens[self.unk]) if self.words else ("", "\N{REPLACEMENT CHARACTER}")
        return joint.join(unknown if i == self.unk else self.tokens[i] for i in map(int, ids) if i not in hidden)


class Bytes(Vocabulary):
    """The bytes of the text as UTF-8: 260 tokens, the special ones first."""

    content = b"bytes\n"

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
    if kind not in ("bpe", "unigram", "word", "char", "byte"):
        return False
    least = len(SPECIAL) + 1 + (BYTES if kind in ("bpe", "unigram") else 0)
    if colon and kind != "byte":
        if not number.isdecimal() or int(number) < least:
            raise UsageError(f"vocabulary={wanted}: {kind}:N wants a whole number of at least {least} tokens, the "
                             f"special ones among them; the vocabularies are {LEARNED}, or a file")
    elif colon or kind in ("bpe", "unigram"):
        raise UsageError(f"vocabulary={wanted}: give {'byte alone' if colon else f'its size, as {kind}:8000'}; the "
                         f"vocabularies are {LEARNED}, or a file")
    return True


def learn(wanted: str, chunks: Iterable[Sequence[str]]) -> Vocabulary:
    """Learn a vocabulary of this kind and size from chunks of lines, in bounded memory.

    bpe:N, unigram:N  SentencePiece, from a reproducible random sample of the lines; text without a piece is spelled in
                      bytes, so nothing is ``unk``. The text is not normalized
    word:N, char:N    the N most frequent, including special tokens, ties by character; without N all of them. With
                      more than 2^22 distinct words, rare ones may be dropped
    byte              needs no text

    Raises DataError if the text is too small for the size, naming a possible one; UsageError as ``is_learned`` does.
    """
    if not is_learned(wanted):
        raise UsageError(f"vocabulary={wanted}: must be one of {LEARNED}")
    kind, _, number = wanted.partition(":")
    if kind == "byte":
        return Bytes()
    if kind in ("bpe", "unigram"):
        return _pieces(wanted, kind, int(number), sample(chunks, SAMPLE[kind]))

    words, counts, rarest = kind == "word", Counter(), 0
    for lines in chunks:
        if len(counts) > MOST_COUNTED:          # words met once are dropped, later words met twice, ...
            rarest += 1
            counts = Counter({word: count for word, count in counts.items() if count > rarest})
        counts.update(itertools.chain.from_iterable(map(str.split, lines) if words else lines))
    for token in SPELLED:
        counts.pop(token, None)
    if not counts:
        raise DataError(f"vocabulary={wanted}: the text to learn it from is empty")
    most = len(counts) + len(SPECIAL)
    if number and int(number) > most:
        raise DataError(f"vocabulary={wanted}: the text has {len(counts)} different "
                        f"{'words' if words else 'characters'}, which make {most} tokens with the special ones; ask "
                        f"for {kind}:{most} or fewer, or {kind} for all")
    return Listed([*SPECIAL, *sorted(counts, key=lambda token: (-counts[token], token))][:int(number or most)], words)


def read(path: Path) -> Vocabulary:
    """The vocabulary in a file: a SentencePiece model, or a UTF-8 list of tokens, one per line, special ones spelled
    <pad>, <unk>, <s>, </s>. A list is of words, or of characters if all are single and the file's name does not end in
    .words. Raises DataError naming an invalid file."""
    try:
        with open_input(path) as file:
            content = file.read(MOST_LISTED + 1)
    except OSError as error:
        raise DataError(f"vocabulary={path}: {refusal(error)}; it is a file, or {LEARNED}") from None
    if len(content) > MOST_LISTED:
        raise DataError(f"{path}: has more than {MOST_LISTED >> 20} MiB; it is not a vocabulary")
    return parse(content, path)


def parse(content: bytes, path: Path) -> Vocabulary:
    if content == Bytes.content:
        return Bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or path.name.endswith(Pieces.suffix):
        try:
            found = Pieces(content)
        except (RuntimeError, ValueError):
            raise DataError(f"{path}: is neither a SentencePiece model nor a list of tokens, one a line as UTF-8"
                            ) from None
        if len(found) <= len(SPECIAL):
            raise DataError(f"{path}: is a SentencePiece model without pieces")
        return found

    text = text.removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if text else []
    tokens = [line[:-1] if len(line) > 1 and line.endswith("\r") else line for line in lines]
    if all(token in SPELLED for token in tokens):
        raise DataError(f"{path}: lists no tokens; a vocabulary has one a line")
    single = path.suffix != WORDS and all(len(token) == 1 or token in SPELLED for token in tokens)
    met = {}
    for line, token in enumerate(tokens, 1):
        if not token or (not single and len(token.split()) != 1):
            hint = "; of the files that SentencePiece writes, give the .model" if "\t" in token else ""
            raise DataError(f"{path}: line {line} is {token[:40]!r}, not one word: a vocabulary has one a line{hint}")
        if token in met:
            raise DataError(f"{path}: line {line} has {token[:40]!r} again, after line {met[token]}; is it a "
                            "vocabulary? It has each token once")
        met[token] = line
    return Listed(tokens, not single)


def sample(chunks: Iterable[Sequence[str]], most: int) -> list[str]:
    """A uniform random sample of the lines, in order, of at most ``most`` characters; reproducible. Each line draws a
    number, and lines below a threshold are kept; the threshold is halved while there are too many. Lines are cut every
    LONGEST characters."""
    draw, bar, kept, size = random.Random(SAMPLE_SEED).random, 1.0, [], 0
    for line in (line[at:at + LONGEST] for lines in chunks for line in lines for at in range(0, len(line), LONGEST)):
        number = draw()
        if number < bar:
            kept.append((number, line))
            size += len(line)
            while size > most:
                bar /= 2
                kept = [pair for pair in kept if pair[0] < bar]
                size = sum(len(line) for _, line in kept)
    return [line for _, line in kept]


def _pieces(wanted: str, kind: str, size: int, lines: list[str]) -> Pieces:
    if not any(map(str.strip, lines)):
        raise DataError(f"vocabulary={wanted}: the text to learn it from is empty")
    package, model = _sentencepiece(), io.BytesIO()
    try:
        package.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=kind, vocab_size=size, byte_fallback=True,
            character_coverage=0.9995, normalization_rule_name="identity", remove_extra_whitespaces=False,
            pad_id=0, unk_id=1, bos_id=2, eos_id=3, num_threads=1, minloglevel=3)
    except (RuntimeError, ValueError, OSError) as error:        # whose message has the possible sizes
        why = f"SentencePiece cannot learn it from this text ({' '.join(str(error).split())}); try char or byte"
        if low := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            why = (f"the text's characters, the 256 bytes and the special tokens need {low[1]} tokens; ask for "
                   f"{kind}:{int(low[1]) + 1} or more")
        high = re.search(r"too high .*<= (\d+)", str(error), re.DOTALL)
        if high and int(high[1]) > len(SPECIAL) + BYTES:
            why = f"the text allows at most {high[1]} tokens of this kind; ask for {kind}:{high[1]} or fewer"
        raise DataError(f"vocabulary={wanted}: {why}") from None
    return Pieces(model.getvalue())


def _sentencepiece():
    return import_extra("sentencepiece", "a vocabulary of pieces", "vocabulary=word, char or byte does without",
                        refused=DataError)
