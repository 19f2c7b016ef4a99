"""The files of a study's draws, listed again and again while other processes add to them.

    listing = Listing("runs/sweep/trials/sgd-b256")
    listing.refresh()               only folders whose draws may have changed, and only new names are parsed
    listing.draws[7]                Files(claims={1}, finished=True)

The files of the first hundred draws and of the repeats lie in the study's folder itself, those of each further hundred
in a folder of their own, as in ``1200/1234.json``: so a listing does not grow with the number of draws.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from ..errors import LogError

FIRST_REPEAT = 100_000              # numbers from here on are repeats of the winner
FOLDER_DRAWS = 100                  # draws whose files share a folder

_NAME = re.compile(r"(0|[1-9]\d*)\.(?:(json)|(claim|released|killed)-([1-9]\d*))")
_FOLDER = re.compile(rf"[1-9]\d*0{{{len(str(FOLDER_DRAWS)) - 1}}}")


@dataclass(frozen=True)
class DrawFiles:
    """The files of one draw: attempts claimed, released and killed, and whether its result exists."""

    claims: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    killed: frozenset[int] = frozenset()
    finished: bool = False

    @property
    def held(self) -> int:
        """The newest attempt; 0 if it was released or there is none."""
        newest = max(self.claims, default=0)
        return 0 if newest in self.released else newest


class Listing:
    """The files of a study's draws as last listed.

    draws     each draw's files;  finished, open: the draws with a result, and those with other files only
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.draws: dict[int, DrawFiles] = {}
        self.finished: set[int] = set()
        self.open: set[int] = set()
        self._names: dict[str, set[str]] = {"": set()}          # by folder

    def refresh(self, number: int | None = None) -> bool:
        """List all draws, or only the folder of one; False if files are gone that were there: list with a new one.

        Raises LogError if a folder cannot be read, or has files of draws of another one.
        """
        if number is not None:
            return self._list(folder_of(number))
        return self._list("") and all(map(self._list, filter(_FOLDER.fullmatch, list(self._names[""]))))

    def _list(self, folder: str) -> bool:
        known = self._names.get(folder, set())
        if folder and self.finished.issuperset(range(int(folder), int(folder) + FOLDER_DRAWS)):
            return True
        names = names_in(os.path.join(self.folder, folder))
        if any(map(_NAME.fullmatch, known - names)):
            return False
        self._names[folder] = names
        for found in filter(None, map(_NAME.fullmatch, names - known)):
            if (own := folder_of(int(found[1]))) != folder:
                raise LogError(f"{os.path.join(self.folder, folder, found[0])}: hvdscale 0.3 kept it there; move all "
                               f"files of the draws from {own} on to {os.path.join(self.folder, own)}, and so for each "
                               "further hundred")
            self._add(*found.groups())
        return True

    def _add(self, text: str, result: str | None, kind: str, attempt: str) -> None:
        number = int(text)
        files = self.draws.get(number, DrawFiles())
        if result:
            files = replace(files, finished=True)
            self.finished.add(number)
            self.open.discard(number)
        else:
            field = "claims" if kind == "claim" else kind
            files = replace(files, **{field: getattr(files, field) | {int(attempt)}})
            if not files.finished:
                self.open.add(number)
        self.draws[number] = files


def folder_of(number: int) -> str:
    """The folder of a draw's files, within the study's."""
    first = number // FOLDER_DRAWS * FOLDER_DRAWS
    return str(first) if 0 < first < FIRST_REPEAT else ""


def names_in(folder: str) -> set[str]:
    """The names in a folder, none if it does not exist; raises LogError if it cannot be read."""
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise LogError(f"{folder}: cannot be read: {error.strerror or error}") from error
