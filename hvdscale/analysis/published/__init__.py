"""Published results that ship with the package: a TOML file a publication, with the provenance of every number.

    read("shallue2019")     -> the file as a dict

Each file's comments say where its numbers stand and how they were obtained; hvdscale.analysis.reference makes records
of them.
"""
from __future__ import annotations

import importlib.resources
from functools import lru_cache

from ...errors import UsageError
from ...plan.settings import read_toml

FOLDER = importlib.resources.files(__name__)


def names() -> list[str]:
    """The publications, in alphabetical order."""
    return sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


@lru_cache
def read(name: str) -> dict:
    """What a publication's file holds; UsageError, with those there are, where there is none of this name."""
    if name not in names():
        there = "".join(f"\n  {one}: {read(one)['title']}" for one in names())
        raise UsageError(f"--compare {name}: there is no such publication in the box; there are:{there}")
    with importlib.resources.as_file(FOLDER / f"{name}.toml") as path:
        return read_toml(path)
