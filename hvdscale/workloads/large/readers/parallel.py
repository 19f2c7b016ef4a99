"""Parallel text: two files whose lines translate each other; plain, gzip or xz.

    text = find_parallel(Path("data/multi30k"), "train", ("en", "de"))       train.en.gz and train.de.gz, for example
    text.require_same_lines(29000, 29000)
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....errors import DataError
from ...files import ENDINGS, describe_folder
from .text import Text


@dataclass(frozen=True)
class ParallelText:
    """The files of the two languages."""

    source: Text
    target: Text

    def require_same_lines(self, source_lines: int, target_lines: int) -> None:
        """Raise DataError if the files have different numbers of lines."""
        if source_lines != target_lines:
            raise DataError(f"{self.source.path} has {source_lines} lines, but {self.target.path} has {target_lines}; "
                            "line n of one translates line n of the other, so they are not of one set, or one is cut "
                            "short")


def find_parallel(folder: Path, prefix: str, languages: tuple[str, str]) -> ParallelText:
    """The files PREFIX.SOURCE and PREFIX.TARGET in the folder, plain, .gz or .xz; raises DataError naming missing ones.
    """
    names = [f"{prefix}.{language}" for language in languages]
    paths = [_find(folder, name) for name in names]
    lacking = [f"{name} or {name}.gz" for name, path in zip(names, paths) if path is None]
    if lacking:
        raise DataError(f"{folder}: has no {' and no '.join(lacking)}; {describe_folder(folder)}")
    return ParallelText(*map(Text, paths))


def _find(folder: Path, name: str) -> Path | None:
    return next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()), None)
