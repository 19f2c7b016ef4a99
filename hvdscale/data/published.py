"""Data sets with a public address, from published.toml: their files, checksums, terms, and layout in a folder.

Only ``hvdscale-data fetch`` downloads them; training never does.
"""
from __future__ import annotations

import importlib.resources
from dataclasses import dataclass, field

from ..plan.settings import read_toml
from .download import PublishedFile


@dataclass(frozen=True)
class Archive:
    """A published archive, unpacked and then removed; members: pattern -> name in the folder, or a subfolder/."""

    file: PublishedFile
    members: dict[str, str]
    count: int                  # of files unpacked


@dataclass(frozen=True)
class DataSet:
    """A data set that ``hvdscale-data fetch`` downloads; the file has what each field is."""

    title: str
    files: tuple[PublishedFile | Archive, ...]
    terms: str
    command: str
    joined: dict[str, list[str]] = field(default_factory=dict)

    @property
    def published(self) -> tuple[PublishedFile, ...]:
        return tuple(file.file if isinstance(file, Archive) else file for file in self.files)


def _data_set(title: str, terms: str, command: str, bases: list[str] = [], files: str = "", archives: list[dict] = [],
              joined: dict[str, list[str]] = {}) -> DataSet:
    found: list[PublishedFile | Archive] = [
        PublishedFile(name, tuple(base + name for base in bases), sha256, int(size))
        for name, size, sha256 in map(str.split, files.splitlines())]
    for one in archives:
        file = PublishedFile(one["addresses"][0].rpartition("/")[2], tuple(one["addresses"]), one["sha256"],
                             one.get("size"))
        found.append(Archive(file, one["members"], one["count"]))
    return DataSet(title, tuple(found), terms, command, joined)


with importlib.resources.as_file(importlib.resources.files(__package__) / "published.toml") as _path:
    _TABLES = read_toml(_path)
BY_HAND: dict[str, str] = _TABLES.pop("by_hand")
DATA_SETS = {name: _data_set(**table) for name, table in _TABLES.items()}
