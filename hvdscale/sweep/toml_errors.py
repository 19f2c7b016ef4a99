"""TOML tables with line numbers, so that errors name file, line and key.

    top = read_table("sweep.toml")
    top.take("trials", int, least=1)
    top.table("space").table("lr").wrong("has no min")      -> UsageError("sweep.toml:14: space.lr: has no min")
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import UsageError
from ..plan.settings import read_toml, tomllib
from ..plan.values import WORDS, check_value, did_you_mean

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_TEXT = re.compile("|".join((r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', r"'''.*?'''(?:'{0,2})",
                            r'"(?:\\.|[^"\\])*"', r"'[^']*'")), re.DOTALL)
_BARE = re.compile(r"[\w-]+")
_PLAIN = re.compile(r"[^,\]}\n#]*")       # a number, a date or a boolean

REQUIRED = object()


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line, from 1, of each key's first occurrence, by path: ("space", "lr", "min").

    The text must be valid TOML. Keys in a list have the line of the list.
    """
    lines: dict = {}
    at, table = _BLANK.match(text).end(), ()
    while at < len(text):
        if text[at] == "[":
            brackets = 2 if text.startswith("[[", at) else 1
            table, at = _key(text, at + brackets, (), lines)
            at += brackets
        else:
            at = _entry(text, at, table, lines)
        at = _BLANK.match(text, at).end()
    return lines


def _key(text: str, at: int, table: tuple, lines: dict) -> tuple[tuple, int]:
    """The path of the key that starts here, and the position after it and trailing blanks."""
    path = table
    while True:
        at = _BLANK.match(text, at).end()
        found = _TEXT.match(text, at) or _BARE.match(text, at)
        quoted = found[0][0] in "\"'"
        path += (tomllib.loads(f"key = {found[0]}")["key"] if quoted else found[0],)
        lines.setdefault(path, text.count("\n", 0, at) + 1)
        at = _BLANK.match(text, found.end()).end()
        if text[at] != ".":
            return path, at
        at += 1


def _entry(text: str, at: int, table: tuple, lines: dict) -> int:
    """Note the lines of the entry ``key = value`` that starts here; returns the position after it."""
    path, at = _key(text, at, table, lines)
    return _value(text, _BLANK.match(text, at + 1).end(), path, lines)


def _value(text: str, at: int, path: tuple, lines: dict) -> int:
    """Note the lines of the keys in the value that starts here; returns the position after it."""
    if text[at] not in "[{":
        return (_TEXT.match(text, at) or _PLAIN.match(text, at)).end()
    closing = "]" if text[at] == "[" else "}"
    at = _BLANK.match(text, at + 1).end()
    while text[at] != closing:
        at = _value(text, at, path, {}) if closing == "]" else _entry(text, at, path, lines)
        at = _BLANK.match(text, at).end()
        if text[at] == ",":
            at = _BLANK.match(text, at + 1).end()
    return at + 1


class Table(Mapping):
    """A table of a TOML file, with the file's name, the lines of its keys and its own path."""

    def __init__(self, file: str, lines: dict, content: dict, path: tuple[str, ...] = ()):
        self.file, self.lines, self.content, self.path = file, lines, content, path

    def __getitem__(self, name: str):
        return self.content[name]

    def __iter__(self):
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def wrong(self, said: str, *key: str) -> UsageError:
        """An error about this table, or a key in it, naming file and the nearest known line."""
        path = (*self.path, *key)
        while path and path not in self.lines:
            path = path[:-1]
        line = f":{self.lines[path]}" if path else ""
        where = f"{'.'.join(self.path)}: " if self.path else ""
        return UsageError(f"{self.file}{line}: {where}{said}")

    def take(self, name: str, kind: type, default=REQUIRED, least=None, below=None):
        """The value of a key, checked for type and bounds; the default if the key is missing.

        Raises UsageError naming key, value and what is accepted.
        """
        if name not in self:
            if default is REQUIRED:
                raise self.wrong(f"has no {name}; give {WORDS[kind]}")
            return default
        try:
            return check_value(name, self[name], kind, least=least, below=below)
        except UsageError as error:
            raise self.wrong(str(error), name) from None

    def table(self, name: str) -> Table:
        """The table of this name; empty if there is none."""
        return Table(self.file, self.lines, self.take(name, dict, {}), (*self.path, name))

    def only(self, known: Iterable[str], elsewhere: Mapping[str, str] = {}) -> None:
        """Raise UsageError for an unknown key, with the place where it belongs or similar names."""
        known = list(known)
        for name in self:
            if name not in known:
                hint = did_you_mean(name, known, f"known keys here: {', '.join(known)}")
                raise self.wrong(f"there is no key {name!r}; {elsewhere.get(name, hint)}", name)


def read_table(path: str) -> Table:
    """The top table of a TOML file; raises UsageError naming the file, and the position of a syntax error."""
    content = read_toml(path)
    return Table(str(path), key_lines(Path(path).read_text(encoding="utf-8")), content)
