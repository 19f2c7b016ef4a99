"""Published results that ship with the package: one TOML file per publication, whose comments give the source of its
numbers and how they were obtained; hvdscale.analysis.reference parses them."""

import importlib.resources
from functools import lru_cache
from typing import Any

from ...errors import UsageError
from ...plan.settings import read_toml

FOLDER = importlib.resources.files(__name__)


def names() -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


@lru_cache
def read(name: str) -> dict[str, Any]:
    """A publication's file; UsageError that lists the publications where the name is unknown."""
    if name not in names():
        there = "".join(f"\n  {one}: {read(one)['title']}" for one in names())
        raise UsageError(f"--compare {name}: there is no such publication; choose one of:{there}")
    with importlib.resources.as_file(FOLDER / f"{name}.toml") as path:
        return read_toml(str(path))
