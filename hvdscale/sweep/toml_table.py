"""TOML tables that know their place, so that errors name file, table and key.

    top = read_table("sweep.toml")
    top.take("trials", int, least=1)
    top.table("space").table("lr").wrong("has no min")      -> UsageError("sweep.toml: space.lr: has no min")
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..errors import UsageError
from ..plan.settings import read_toml
from ..plan.values import WORDS, check_value, did_you_mean

REQUIRED = object()


class TomlTable(Mapping):
    """A table of a TOML file, with the file's name, its own path, and the tables that override some of its keys."""

    def __init__(self, file: str, content: dict, path: tuple[str, ...] = (),
                 overrides: Mapping[str, TomlTable] = {}):
        self.file, self.content, self.path, self.overrides = file, content, path, overrides

    def under(self, other: TomlTable, dropped: Iterable[str] = ()) -> TomlTable:
        """This table with the keys of another over its own; errors name the table that sets a key."""
        kept = {name: value for name, value in self.content.items() if name not in dropped}
        return TomlTable(self.file, {**kept, **other}, self.path, dict.fromkeys(other, other))

    def __getitem__(self, name: str):
        return self.content[name]

    def __iter__(self):
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def wrong(self, said: str, key: str = "") -> UsageError:
        """An error about this table, or a key in it, naming file and table."""
        path = self.overrides[key].path if key in self.overrides else self.path
        return UsageError(": ".join(filter(None, (self.file, ".".join(path), said))))

    def take(self, name: str, kind: type, default=REQUIRED, least=None, below=None):
        """The value of a key, checked for type and bounds, or the default; raises UsageError."""
        if name not in self:
            if default is REQUIRED:
                raise self.wrong(f"has no {name}; give {WORDS[kind]}")
            return default
        try:
            return check_value(name, self[name], kind, least=least, below=below)
        except UsageError as error:
            raise self.wrong(str(error), name) from None

    def table(self, name: str) -> TomlTable:
        return TomlTable(self.file, self.take(name, dict, {}), (*self.path, name))

    def only(self, known: Iterable[str], elsewhere: Mapping[str, str] = {}) -> None:
        """Raise UsageError for an unknown key, with the place where it belongs or similar names."""
        known = list(known)
        for name in self:
            if name not in known:
                hint = did_you_mean(name, known, f"known keys here: {', '.join(known)}")
                raise self.wrong(f"there is no key {name!r}; {elsewhere.get(name, hint)}", name)


def read_table(path: str) -> TomlTable:
    """The top table of a TOML file; raises UsageError naming the file, and the position of a syntax error."""
    return TomlTable(str(path), read_toml(path))
