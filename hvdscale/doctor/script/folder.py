"""The working folder's copy, in which the script runs, and what the script wrote there."""
from __future__ import annotations

import contextlib
import os
import shutil
import stat
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from ...errors import UsageError

LARGEST = 512 << 20                     # bytes that are copied, at most
LEFT_OUT = (".git", ".hg", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".pytest_cache")  # linked to
SCRATCH = ".hvdscale."                  # begins the name of a folder in TMPDIR, of any doctor that runs
MOST_BESIDE = 1000                      # files and folders beside it that are linked to
ABOVE = 2                               # folders above it from which the script may import

State = dict[str, tuple[int, int]]      # path -> bytes, time of the last change in ns


@dataclass(frozen=True)
class Workplace:
    """Where the script runs."""

    original: Path
    folder: Path
    copied: bool                # it is a copy of ``original``, which is left as it is; else it is ``original`` itself
    before: State

    def written(self) -> list[str]:
        """The files that the script has written or removed here."""
        now = state_of(self.folder)
        return sorted(name for name in {*now, *self.before} if now.get(name) != self.before.get(name))


def make_workplace(original: Path, place: Path) -> Workplace:
    """A copy of the folder at a new place; the folder itself where it is larger than LARGEST. Links stay links, so
    large data may be linked to; .git and .venv are linked to, as is what lies beside the folder, and what Python can
    import from the folders above. Raises UsageError where something cannot be copied."""
    before = state_of(original)
    if sum(size for size, _ in before.values()) > LARGEST:
        return Workplace(original, original, False, before)
    folder = copy_of(original, place)
    folder.parent.mkdir(parents=True)
    try:
        shutil.copytree(original, folder, symlinks=True, ignore=partial(_ignored, place))
    except shutil.Error as error:
        path, _, why = error.args[0][0]
        raise UsageError(f"{path}: cannot be copied: {why}; run the script in a folder of its own") from None
    for name in LEFT_OUT:
        if (original / name).exists() and not (folder / name).is_symlink():
            (folder / name).symlink_to(original / name)
    for above, copy in zip(original.parents[:ABOVE], folder.parents):
        with contextlib.suppress(OSError), os.scandir(above) as beside:
            for one in islice(beside, MOST_BESIDE):
                near = above == original.parent and not one.name.startswith(".")
                package = one.name.isidentifier() and os.path.isfile(os.path.join(one.path, "__init__.py"))
                if (near or package or one.name.endswith(".py")) and not (copy / one.name).exists():
                    (copy / one.name).symlink_to(one.path)
    return Workplace(original, folder, True, state_of(folder))


def copy_of(original: Path, place: Path) -> Path:
    """Where the copy of a folder is made, below folders that are named as those above the original."""
    return place.joinpath(*original.parts[1:][-ABOVE - 1:])


def _ignored(place: Path, folder: str, names: list[str]) -> list[str]:
    """Names that are not copied: those left out, the copy itself, and what is neither file nor folder nor link."""
    own = {place, *(above for above in place.parents if above.name.startswith((SCRATCH, "hvdscale-")))}
    paths = [Path(folder, name) for name in names]
    plain = {path for path in paths if path.is_symlink() or os.access(path, os.R_OK) and (
        path.is_dir() or path.is_file())}
    return [path.name for path in paths
            if path.name in LEFT_OUT or path.name.startswith(SCRATCH) or path in own or path not in plain]


def state_of(folder: Path) -> State:
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(SCRATCH)]
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):        # another process may remove it meanwhile
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    found[os.path.relpath(path, folder)] = status.st_size, status.st_mtime_ns
    return found
