"""README.rst and the guides that it leads to: their commands, code blocks and links."""
import re
from typing import NamedTuple

from matplotlib.image import imread

from tests.conftest import ROOT

PATHS = ("README.rst", "hvdscale/README.rst", *(f"hvdscale/{name}.rst" for name in (
    "workloads/README", "doctor/README", "doctor/resume/README", "training/README", "training/batches",
    "sweep/README", "analysis/README", "log/README", "report/README", "exchange/README", "exchange/runs/README",
    "scaling/README")), "slurm/README.rst")
COMMAND = r"^    \$ (?:.*\\\n)*.*"          # a backslash continues it


class Shown(NamedTuple):
    """A command as it is typed, the time that it is said to take, and the lines shown as its output."""

    command: str
    time: str
    output: str


def read(path):
    return (ROOT / path).read_text()


def typed(path):
    """Each command after a $, in order."""
    found = []
    for command, output in re.findall(rf"({COMMAND})\n((?:\n?    (?!\$ ).*\n)*)", read(path), re.M):
        command, _, time = re.sub(r" *\\\n *", " ", command)[6:].partition("  # ")
        found.append(Shown(command.strip(), time, re.sub(r"^    ", "", output, flags=re.M).strip("\n")))
    return found


def named(path):
    """Commands that the text names, whole."""
    return re.findall(r"``((?:tools/|salloc |hvdscale-\w+ -|hvdscale-data )[^`]*)``", read(path))


def completion():
    """README's line that lets the shell complete the commands."""
    [line] = [shown.command for shown in typed("README.rst") if "_COMPLETE=" in shown.command]
    return line


def block(path, language):
    """The document's first block in a language, without the indentation; None if there is none."""
    found = re.search(rf"\.\. code-block:: {language}\n\n((?:    .*\n|\n)+)", read(path))
    return found and re.sub(r"^    ", "", found[1], flags=re.M)


def images(path):
    """The files that a document shows as images, in order."""
    names = re.findall(r"^\.\. image:: (\S+)", read(path), re.M)
    return [(ROOT / path).parent.joinpath(name).resolve() for name in names]


def assert_drawn_alike(drawn, kept):
    """That two image files show the same but for the rendering of fonts."""
    drawn, kept = imread(drawn), imread(kept)
    assert drawn.shape == kept.shape and abs(drawn - kept).mean() < 0.01
