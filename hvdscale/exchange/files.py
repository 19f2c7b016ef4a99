"""Files from elsewhere, read with care.

    json_of(text_of(path), path, dict)          what its JSON holds
    WrongFile                                   what is wrong with a file, which may be passed over
"""

import codecs
import errno
import json
import re
from typing import Any

from ..errors import LogError
from ..log.plan_text import MOST, format_value, is_deeper
from ..system.inputs import read_input, refusal
from ..target import SPLITS

LARGEST_INT = 2**63 - 1
DEEPEST = 30                        # nesting of a study; with the plan around it at most plan_text.DEEPEST
# the published archive's names of metaparameters -> ours
RENAMED = {"end_learning_rate_factor": "end_lr_factor", "learning_rate_decay_steps": "decay_steps"}
NAME = re.compile(r"[\w.+-]*\w[\w.+-]*", re.ASCII)
METRIC = re.compile(rf"(?:{'|'.join(SPLITS)})/{NAME.pattern}", re.ASCII)      # split/metric


class WrongFile(LogError):
    """An invalid file from elsewhere."""


def file_bytes(content: bytes | str | None, name: str, most: int, follow: bool = False) -> bytes:
    """A file's content, which may be given; of UTF-16 in UTF-8. Raises WrongFile if it is missing, too large or not a
    regular file. Unless ``follow``, as in an archive from elsewhere, out of which none must lead, a link is none."""
    if content is None:
        raise WrongFile(f"{name}: is missing")
    if isinstance(content, bytes):
        return content
    try:
        data = read_input(content, most, follow)
    except FileNotFoundError:
        raise WrongFile(f"{name}: is missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WrongFile(f"{name}: is not a regular file, but a link; put what it leads to in its place") from None
        raise WrongFile(f"{name}: {refusal(error)}") from error
    return data.decode("utf-16", "replace").encode() if encoding_of(data) == "utf-16" else data


def encoding_of(head: bytes) -> str:
    """The encoding of a text by its first bytes: UTF-16 where they mark it, as PowerShell's ``>`` does, else UTF-8."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def text_of(content: bytes | str | None, name: str = "", most: int = 1 << 30, follow: bool = True) -> str:
    """The text in UTF-8 of a file, see ``file_bytes``; raises WrongFile, naming the file."""
    name = name or str(content)
    try:
        return str(file_bytes(content, name, most, follow), "utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongFile(f"{name}: is not text in UTF-8: {error}") from None


def json_of(text: str, name: str, kind: type = object) -> Any:
    """What a file's JSON holds; raises WrongFile, naming the file, for anything but this kind, and for deep objects."""
    try:
        found = json.loads(text)
        deep = kind is dict and isinstance(found, dict) and is_deeper(found, DEEPEST)
    except RecursionError:
        deep = True
    except ValueError as error:
        raise WrongFile(f"{name}: is not JSON: {error}") from None
    if deep:
        raise WrongFile(f"{name}: is nested too deep")
    if not isinstance(found, kind):
        raise WrongFile(f"{name}: holds JSON, but not an object: {text[:40]!r}")
    return found


def number_of(text: Any) -> float | None:
    """The number that a text is; None of any other, and of one with a _, which Python accepts between digits."""
    try:
        return float(text) if "_" not in str(text) else None
    except (OverflowError, TypeError, ValueError):
        return None


def is_number(value: Any) -> bool:
    """Whether it is a number, and no flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_float(value: Any, where: str) -> float:
    """A number, flag or text of one as a float; raises WrongFile, which names the place, for anything else."""
    try:
        return float(value.decode() if isinstance(value, bytes) else value)
    except (OverflowError, TypeError, ValueError):
        raise WrongFile(f"{where} is {repr(value)[:40]}, not a number that a float can hold") from None


def whole_number(value, least: int, name: str, key: str, most: int = MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WrongFile(f"{name}: {key} is {format_value(value)}, not an integer from {least} to {most}")
    return value


def parameter_name(key: str, file: str) -> str:
    """Our name of a metaparameter; raises WrongFile for an invalid column name."""
    if not NAME.fullmatch(key):
        raise WrongFile(f"{file}: {format_value(key)} is not a valid name for a parameter (letters, digits, . + - _)")
    return RENAMED.get(key, key)
