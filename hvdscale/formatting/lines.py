"""Text in lines as wide as the terminal: as COLUMNS, or else the system, has it; a command's --width sets COLUMNS."""

import shutil
import sys
import textwrap

from .escaping import printable

NARROWEST, WIDEST = 60, 160
USUAL = 100             # characters, where there is no terminal


def terminal_width() -> int | None:
    """Characters of a line; None where stdout is no terminal and COLUMNS is not set."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return max(NARROWEST, min(columns, WIDEST)) if columns else None


def line_width() -> int:
    """The same, or else the usual one."""
    return terminal_width() or USUAL


def wrap(text: str, start: str = "", whole: bool = False) -> str:
    """The text in lines behind ``start``, such as "- "; words stay whole, so that a long file name may stick out.
    ``whole``: keep it on one line where there is no terminal."""
    return textwrap.fill(printable(text), terminal_width() or (sys.maxsize if whole else USUAL), initial_indent=start,
                         subsequent_indent=" " * len(start), break_long_words=False, break_on_hyphens=False)
