"""Text that may hold what a file from elsewhere says, as a terminal can be given it."""
from __future__ import annotations

import re

# control characters but for tab and line feed; marks that turn the direction of writing; halves of characters, which
# represent bytes of a file's name that are not text
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with what would steer the terminal, rather than be shown, written as in Python: \x1b, \u202e."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# how a cell begins that a spreadsheet would work out, be there apostrophes before it; numbers do not begin so
_FORMULA = r"(?:[=@\t\r]|[+-](?:[^\d.\s]|.*[(|!]))"


def as_cell(text: str) -> str:
    """The text as a cell of CSV that no spreadsheet takes for a formula: one that begins so has an apostrophe before
    it."""
    return f"'{text}" if re.match(f"'*{_FORMULA}", text) else text


def of_cell(text: str) -> str:
    """The text that ``as_cell`` was given."""
    return text[1:] if re.match(f"'+{_FORMULA}", text) else text
