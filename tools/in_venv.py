"""Imported first by a tool: runs it with the Python of .venv where its own lacks hvdscale's packages."""
import importlib.util
import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv"

if importlib.util.find_spec("h5py") is None:
    python = VENV / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == VENV:
        sys.exit(f"{sys.argv[0]}: {sys.executable} lacks hvdscale's packages, and so does .venv; run tools/setup")
    os.execv(python, [str(python), *sys.argv])
