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

_LINE = re.compile(r"\s*(?:\[+(?P<table>[^\]\n]+)\]|(?P<key>[^=#\n]+)=)")

REQUIRED = object()


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line, from 1, of each key that begins a line, and of each table, by path: ("space", "lr", "min").

    The text must be valid TOML. Keys inside a value have none, such as those of an inline table.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.match(line)
        if found and found["table"]:
            path = table = _path(found["table"])
        else:
            path = (*table, *_path(found["key"])) if found else ()
        for end in range(1, len(path) + 1):
            lines.setdefault(path[:end], number)
    return lines


def _path(key: str) -> tuple[str, ...]:
    """The names in a dotted key; none where it is no key, as a line of a text may seem to have one."""
    try:
        value: object = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    path: tuple[str, ...] = ()
    while isinstance(value, dict):
        [(name, value)] = value.items()
        path += (name,)
    return path


class TomlTable(Mapping):
    """A table of a TOML file, with the file's name, the lines of its keys and its own path.

    overrides  the table that sets a key, for those that are not set in this one
    """

    def __init__(self, file: str, lines: dict, content: dict, path: tuple[str, ...] = (),
                 overrides: Mapping[str, TomlTable] = {}):
        self.file, self.lines, self.content, self.path, self.overrides = file, lines, content, path, overrides

    def under(self, other: TomlTable, dropped: Iterable[str] = ()) -> TomlTable:
        """This table with the keys of another over its own; errors name the table that sets a key."""
        kept = {name: value for name, value in self.content.items() if name not in dropped}
        return TomlTable(self.file, self.lines, {**kept, **other}, self.path, dict.fromkeys(other, other))

    def __getitem__(self, name: str):
        return self.content[name]

    def __iter__(self):
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def wrong(self, said: str, *key: str) -> UsageError:
        """An error about this table, or a key in it, naming file and the nearest known line."""
        if key and key[0] in self.overrides:
            return self.overrides[key[0]].wrong(said, *key)
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

    def table(self, name: str) -> TomlTable:
        """The table of this name; empty if there is none."""
        return TomlTable(self.file, self.lines, self.take(name, dict, {}), (*self.path, name))

    def only(self, known: Iterable[str], elsewhere: Mapping[str, str] = {}) -> None:
        """Raise UsageError for an unknown key, with the place where it belongs or similar names."""
        known = list(known)
        for name in self:
            if name not in known:
                hint = did_you_mean(name, known, f"known keys here: {', '.join(known)}")
                raise self.wrong(f"there is no key {name!r}; {elsewhere.get(name, hint)}", name)


def read_table(path: str) -> TomlTable:
    """The top table of a TOML file; raises UsageError naming the file, and the position of a syntax error."""
    content = read_toml(path)
    return TomlTable(str(path), key_lines(Path(path).read_text(encoding="utf-8")), content)
