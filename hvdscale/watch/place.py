"""The private folder that the processes of a run share, and from which code is run.

The processes of a launch find it by its name, which any user of the host could find out.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from ..errors import HvdscaleError
from ..system.files import clear_leavings, own_folder, scratch_folder, writing
from ..system.inputs import require_own_folder
from ..workers.launch import SHARED, Process, shared_folder

POLL_SECONDS = 0.02
OF_LAUNCHES = re.compile(r"(\.hvdscale-)?doctor-[0-9a-f]{16}")
SHARE = f"{SHARED}=FOLDER names a folder that all hosts share"


@contextlib.contextmanager
def place_for(process: Process, seconds: float) -> Iterator[Path]:
    """A private folder, the same for all processes of a launch; rank 0 makes it, and removes it in the end. Raises
    HvdscaleError where another user may have made it, or where it does not appear in these seconds."""
    if process.size == 1:
        with scratch_folder() as folder:
            yield Path(folder)
        return
    folders, remedy = _folders_of(process)
    with contextlib.ExitStack() as made:
        with writing(folders[-1], HvdscaleError):
            if process.rank == 0:
                _make_own(folders, remedy, made)
            for one in folders:
                await_path(one, seconds, SHARE)
                require_own_folder(one, remedy)
        yield folders[-1]


def await_path(path: Path, seconds: float, remedy: str) -> None:
    until = time.monotonic() + seconds
    while not os.path.lexists(path):
        if time.monotonic() > until:
            raise HvdscaleError(f"rank 0 has left nothing at {path} within {seconds:g} s; {remedy}")
        time.sleep(POLL_SECONDS)


def _folders_of(process: Process) -> tuple[list[Path], str]:
    """The folders that have to be this user's own, from the outermost, and how to have them elsewhere."""
    one_host = process.local_size == process.size
    # torchrun may give each launch one name
    parent = os.getppid() if one_host and process.launcher == "torchrun" else 0
    name = sha256(f"{os.getuid()}:{process.job}:{parent}".encode()).hexdigest()[:16]
    if one_host:
        own = Path(tempfile.gettempdir(), f"hvdscale-{os.getuid()}")
        return [own, own / f"doctor-{name}"], "name another place by TMPDIR=FOLDER"
    return [shared_folder() / f".hvdscale-doctor-{name}"], f"name another place by {SHARED}=FOLDER"


def _make_own(folders: list[Path], remedy: str, made: contextlib.ExitStack) -> None:
    *above, folder = folders
    for one in above:
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)
        require_own_folder(one, remedy)
    if os.path.lexists(folder):                 # of a launch of this name that was killed
        require_own_folder(folder, remedy)
        shutil.rmtree(folder, ignore_errors=True)
    clear_leavings(folder.parent, OF_LAUNCHES)
    made.enter_context(own_folder(folder, 0o700))
