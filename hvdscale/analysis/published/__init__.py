"""Published results that ship with the package: one TOML file per publication, whose comments give the source of its
numbers and how they were obtained; hvdscale.analysis.reference parses them."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...plan.settings import read_toml

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@lru_cache
def read(name: str) -> dict[str, Any]:
    """A publication's file; UsageError that lists the publications where the name is unknown."""
    if name not in names():
        there = "".join(f"\n  {one}: {read(one)['title']}" for one in names())
        raise UsageError(f"--compare {name}: there is no such publication; choose one of:{there}")
    return read_toml(str(FOLDER / f"{name}.toml"))
