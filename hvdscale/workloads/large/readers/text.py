"""UTF-8 text: which files make it up, found by name or given by the user, to which split each belongs, and their lines.

    files = find_named(Path("wikitext-2"), {"train": "valid.txt", "val": "test.txt"}, allow_missing=False)
    for lines, read_bytes in files.train[0].chunks(): ...
    train, val, test = cut_in_order(Path("input.txt"))          parts of one file

Files may be plain, gzip or xz, recognised by their first bytes; they are read in chunks of whole lines. Missing or
inconsistent files raise a DataError that names them.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ....errors import DataError
from ....formatting.numbers import list_first
from ...files import describe_folder, opened, reading

CHUNK = 2**20               # bytes read at once; longer lines are split
HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 2**23         # of a single file's bytes, each for validation and testing

PARTS = ("train", "val", "test")

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

ASKED = {"lm1b": f"the folder that has {LM1B_SHARDS}/news.en-00001-of-00100 and the others, or these files themselves",
         "common_crawl": "a folder of text files (.txt, also .gz or .xz), or one file",
         "text": "a file, or a folder with train.txt, valid.txt and test.txt (.tokens, .text, .raw; also .gz or .xz)"}


@dataclass(frozen=True)
class Text:
    """A text file, or its part from byte ``start`` to ``stop`` of the uncompressed content, both at line starts."""

    path: Path
    start: int = 0
    stop: int | None = None

    def chunks(self) -> Iterator[tuple[list[str], int]]:
        """The lines in order, without their ends, LF or CR LF: about CHUNK bytes at a time, each with the number of
        bytes read from disk for it; longer lines are split at a space. Raises DataError naming the file, and the line
        if known, for text that is not UTF-8, has NUL bytes or is empty."""
        with opened(self.path) as (raw, file):
            file.seek(self.start)
            at, tail, seen = self.start, b"", raw.tell()
            left = sys.maxsize if self.stop is None else self.stop - self.start
            while True:
                block = file.read(min(CHUNK, left))
                left -= len(block)
                data = tail + block
                if cut := _whole_lines(data) if block else len(data):
                    yield self._decoded(data[:cut], at), raw.tell() - seen
                    seen = raw.tell()
                at, tail = at + cut, data[cut:]
                if not block:
                    break
        if self.stop is None and at == 0:
            raise DataError(f"{self.path}: is empty; it should hold text, a line or more")

    @property
    def stored_bytes(self) -> int:
        """Approximate number of bytes that ``chunks`` reads from disk."""
        with opened(self.path) as (raw, file):
            size = os.fstat(raw.fileno()).st_size
        if raw is not file:
            return size
        return (size if self.stop is None else self.stop) - self.start

    def _decoded(self, data: bytes, at: int) -> list[str]:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self._line(at + error.start)} is not UTF-8: it holds byte 0x{data[error.start]:02x} "
                            f"which is invalid there; convert the file (iconv -f ENCODING -t utf-8)") from None
        if "\0" in text:
            raise DataError(f"{self._line(at + data.index(0))} holds a NUL byte, which no text does; it is another "
                            "kind of file, or damaged")
        lines = (text.removeprefix("\ufeff") if at == 0 else text).split("\n")        # the byte order mark
        if lines[-1] == "":
            lines.pop()
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def _line(self, at: int) -> str:
        line = 1
        with opened(self.path) as (_, file):
            while at > 0:
                if not (block := file.read(min(CHUNK, at))):
                    break
                line, at = line + block.count(b"\n"), at - len(block)
        return f"{self.path}: line {line}"


def cut_in_order(path: Path, *shares: float) -> list[Text]:
    """Consecutive parts of the file, cut at line ends: the first, then one for each of these shares of its bytes."""
    with opened(path) as (_, file):
        size = file.seek(0, os.SEEK_END)            # of the uncompressed content
    held_out = [int(size * share) for share in shares] or [min(int(size * HELD_OUT_SHARE), HELD_OUT_MOST)] * 2
    bounds = [0, *(_line_start(path, size - sum(held_out[part:])) for part in range(len(held_out))), size]
    return [Text(path, a, b) for a, b in zip(bounds, bounds[1:])]


def _whole_lines(data: bytes) -> int:
    """Length of the data up to its last line end; without one, up to the last space or whole character."""
    cut = data.rfind(b"\n") + 1
    if cut or len(data) < CHUNK:
        return cut
    if cut := data.rfind(b" ") + 1:
        return cut
    cut = len(data) - 4
    while data[cut] & 0xC0 == 0x80 and cut > len(data) - 8:        # inside a multi-byte character
        cut -= 1
    return cut


def _line_start(path: Path, at: int) -> int:
    """The first line start at or after this byte; in a very long line, the next space or character boundary."""
    if at <= 0:
        return 0
    with opened(path) as (_, file):
        file.seek(at - 1)
        data = file.read(CHUNK)
    end = data.find(b"\n")
    if end < 0 and len(data) == CHUNK:
        end = data.find(b" ")
        if end < 0:
            return at - 1 + _whole_lines(data)
    return at + end if end >= 0 else at - 1 + len(data)


@dataclass(frozen=True)
class TextFiles:
    """The files of a text, in order; without test files there is no test split."""

    train: Sequence[Text]
    val: Sequence[Text]
    test: Sequence[Text] = ()
    missing: tuple[str, ...] = ()       # names of missing files of a numbered set
    notes: tuple[str, ...] = ()         # how the text was divided, if names do not tell


def find_lm1b(folder: Path, allow_missing: bool) -> TextFiles:
    """The shards of LM1B, in the folder itself or laid out as in the published archive. Validation is on the first
    held-out shard, testing on the second; without them each is on half of the last shard."""
    if folder.is_file():
        raise DataError(f"{folder}: is a file; give {ASKED['lm1b']}")
    base = next((folder / name for name in LM1B_FOLDERS if (folder / name / LM1B_SHARDS).is_dir()), None)
    place = base / LM1B_SHARDS if base else folder
    if not (shards := [path for path in _list_files(place) if SHARD.fullmatch(path.name)]):
        raise DataError(f"{folder}: has no shards of LM1B; give {ASKED['lm1b']}; {describe_folder(folder)}")
    shards, missing = complete(shards, allow_missing, first=1)
    for held_out in (base / LM1B_HELD_OUT if base else place, place.parent / LM1B_HELD_OUT):
        found = [path for path in _list_files(held_out) if HELD_OUT.fullmatch(path.name)] if held_out.is_dir() else []
        if found:
            by_number = {int(NUMBERED.fullmatch(path.name)[2]): path for path in found}
            if 0 not in by_number:
                raise DataError(f"{held_out}: lacks news.en.heldout-00000-of-00050, which validation is on; place it "
                                "there, or name another file with --data-arg val=FILE")
            train, val, test = ([Text(path) for path in paths] for paths in (
                shards, [by_number[0]], filter(None, [by_number.get(1)])))
            return TextFiles(train, val, test, missing)
    return replace(hold_out_last(shards), missing=missing)


def find_text(folder: Path, allow_missing: bool) -> TextFiles:
    """One file, which is cut; files named train, valid (val, dev), test; or others, the last of them held out."""
    if folder.is_file():
        return _cut(folder)
    files = [path for path in _list_files(folder) if TEXT.fullmatch(path.name)]
    if any(pattern.fullmatch(path.name) for pattern in NAMED.values() for path in files):
        return find_named(folder, {}, allow_missing)
    if not files:
        raise DataError(f"{folder}: has no text file; give {ASKED['text']}; {describe_folder(folder)}")
    files, missing = complete(files, allow_missing)
    return replace(hold_out_last(files), missing=missing)


def find_named(folder: Path, named: Mapping[str, str], allow_missing: bool) -> TextFiles:
    files = {part: _find_named(folder, part, name) for part, name in named.items()}
    taken = {path.resolve() for paths in files.values() for path in paths}
    others = [path for path in (_list_files(folder) if folder.is_dir() else [])
              if TEXT.fullmatch(path.name) and path.resolve() not in taken]
    parts: dict[Path, str] = {}
    for part in PARTS:
        if part not in named:
            files[part] = [path for path in others if NAMED[part].fullmatch(path.name)]
        for path in files[part]:
            if (other := parts.setdefault(path.resolve(), part)) != part:       # or as train_val.txt
                raise DataError(f"{path}: would be in both the {other} and the {part} split; name another file with "
                                f"--data-arg {part}=FILE")
    for part, known in (("train", "train.txt"), ("val", "valid.txt")):
        if not files[part]:
            raise DataError(f"{folder}: has no file for the {part} split, such as {known}; name one with --data-arg "
                            f"{part}=FILE; {describe_folder(folder)}")
    found = {part: complete(files[part], allow_missing) for part in PARTS}
    return TextFiles(*([Text(path) for path in found[part][0]] for part in PARTS),
                     tuple(name for part in PARTS for name in found[part][1]))


def _find_named(folder: Path, part: str, name: str) -> list[Path]:
    path = folder / str(name)
    if path.is_dir():
        return _list_files(path)
    found = sorted(path.parent.glob(path.name)) if not path.exists() and any(map(path.name.count, "*?[")) else [path]
    if not (found := [path for path in found if path.is_file()]):
        raise DataError(f"{path}: there is no such file, for --data-arg {part}={name}; {describe_folder(path.parent)}")
    return found


def complete(files: Sequence[Path], allow_missing: bool, first: int = 0) -> tuple[list[Path], tuple[str, ...]]:
    """The files in order, and the missing ones of a numbered set (NAME-00003-of-00100); raises DataError."""
    matches = [NUMBERED.fullmatch(path.name) for path in files]
    if not all(matches):
        known: dict[Path, Path] = {}
        for path in files:
            other = known.setdefault(path.with_name(re.sub(PACKED + "$", "", path.name)), path)
            if other is not path:
                raise DataError(f"{path}: is the same text as {other.name}, as its name says; leave one of them there")
        return sorted(files), ()
    found, sets = {}, {}
    for path, match in zip(files, matches):
        name, number, total = match[1], int(match[2]), int(match[3])
        if (name, number) in found:
            raise DataError(f"{path}: is the same part of the text as {found[name, number]}; leave one of them there")
        if sets.setdefault(name, match)[3] != match[3]:
            raise DataError(f"{path}: is of a set of {total} files, and {sets[name].string} of one of "
                            f"{int(sets[name][3])}; leave one set there")
        found[name, number] = path
    missing = tuple(f"{name}{number:0{len(match[2])}d}-of-{match[3]}{match[4]}" for name, match in sets.items()
                    for number in range(first, int(match[3])) if (name, number) not in found)
    if missing and not allow_missing:
        raise DataError(f"{files[0].parent}: lacks {list_first(missing, SHOWN)}; place what is missing there, or train "
                        "without it: --allow-missing")
    return [found[key] for key in sorted(found)], missing


def hold_out_last(files: Sequence[Path]) -> TextFiles:
    """All but the last for training, halves of the last for validation and testing; a single file is cut."""
    if len(files) < 2:
        return _cut(files[0])
    val, test = cut_in_order(files[-1], 0.5)
    return TextFiles([Text(path) for path in files[:-1]], [val], [test], notes=(
        f"{files[-1].name} is held out: its first half for validation, its second for testing",))


def _cut(path: Path) -> TextFiles:
    train, val, test = cut_in_order(path)
    return TextFiles([train], [val], [test], notes=(
        f"{path.name} is cut: its last bytes, from {val.start:,} on, are for validation, from {test.start:,} on for "
        "testing",))


def _list_files(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
