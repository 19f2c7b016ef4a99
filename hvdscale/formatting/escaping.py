"""Text that may hold what a file from elsewhere says, as a terminal can be given it."""

import re
import sys
import unicodedata

_PLAIN, _ONE_LINE = re.compile(r"[^\n\t -~]"), re.compile("[^ -~]")         # what needs a look
# of the characters that are neither control nor format, those without a shape: fillers, selectors of variants
_SHAPELESS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0"
                        "\U000e0100-\U000e01ef]")


def printable(text: str, lines: bool = True) -> str:
    r"""The text with control and format characters, what Unicode has not assigned, and bytes of a file's name that are
    not text written as in Python: \x1b, \u202e, \u200b. ``lines``: whether tabs and line feeds stay."""
    return (_PLAIN if lines else _ONE_LINE).sub(_show, text)


def _show(found: re.Match[str]) -> str:
    letter = found[0]
    seen = letter.isprintable() or unicodedata.category(letter) == "Zs"
    return letter if seen and not _SHAPELESS.match(letter) else letter.encode("unicode_escape").decode()


def say(text: str = "", err: bool = False) -> None:
    """Print on stdout or stderr what may hold names and messages from others' files: the one way to print."""
    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


# how a cell begins that a spreadsheet would work out, be there apostrophes before it; numbers do not begin so
_FORMULA = r"(?:[=@\t\r]|[+-](?:[^\d.\s]|.*[(|!]))"


def as_cell(text: str) -> str:
    """The text as a cell of CSV that no spreadsheet takes for a formula: behind an apostrophe where it begins so."""
    return f"'{text}" if re.match(f"'*{_FORMULA}", text) else text


def of_cell(text: str) -> str:
    """The text that ``as_cell`` was given."""
    return text[1:] if re.match(f"'+{_FORMULA}", text) else text
