"""A module of hvdscale as the main program of another process, without the working folder on its path.

    module_command("hvdscale.cli.train", "digits/fc")         [python, THIS FILE, "hvdscale.cli.train", "digits/fc"]

``python -m`` would import a json.py that lies in the working folder, which may be another user's. Python 3.10 has
neither -P nor PYTHONSAFEPATH, and multiprocessing starts its processes by ``python -c``, which has that folder, too:
see ``away_from_here``.
"""
import os
import sys

SAFE, OURS = "PYTHONSAFEPATH", "hvdscale"           # for a launcher that is written in Python, from 3.11 on
ABOVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def module_command(module, *arguments):
    """The command that runs the module as ``python -m`` would, with a path of sys.path's own entries alone."""
    return [sys.executable, os.path.abspath(__file__), module, *arguments]


class away_from_here:
    """A section in which multiprocessing starts processes: in the folder of Python's own modules."""

    def __enter__(self):
        self._here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        os.chdir(os.path.dirname(os.__file__))

    def __exit__(self, *_):
        os.fchdir(self._here)
        os.close(self._here)


if __name__ == "__main__":
    if os.environ.get(SAFE) == OURS:
        del os.environ[SAFE]                # not for what the user's code starts
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
        del sys.path[0]
    if ABOVE not in sys.path:
        sys.path.append(ABOVE)
    del sys.argv[0]
    import runpy
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
