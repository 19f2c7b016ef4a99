"""What the outputs of a command may replace, and that no two of them are one file.

    refuse_shared([("--log-file", "w8.h5"), ("--save-model", "model.pt")])
    refuse_foreign("model.pt", MODEL)
    replace_own("tuned.toml", text)
"""

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..errors import HvdscaleError, UsageError
from .files import as_bytes, write_whole, writing
from .inputs import NO_FILE, open_input

HEAD_BYTES = 4096
SAME_BYTES = 24         # of text without spaces, by which its kind is known


class Kind(NamedTuple):
    """A kind of file: its name in messages, and whether a file's first bytes are of it."""

    name: str
    begins: Callable[[bytes], bool]


# a state dict as torch.save writes it, today and before 1.6: a ZIP archive whose first entry is data.pkl, or pickle
MODEL = Kind("a file of torch.save", lambda head: head[:4] == b"PK\3\4" and b"/data.pkl" in head[:300]
             or head[:14] == b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19")
PRINTED = Kind("the output of an earlier run", lambda head: b"hvdscale" in head)


def refuse_shared(outputs: Iterable[tuple[str, str | os.PathLike]]) -> None:
    """UsageError where two of a command's files, each with the option that names it, are one: links and .. resolved."""
    taken: dict[str, str] = {}
    for option, path in outputs:
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise UsageError(f"{option} {os.fspath(path)}: is the file of {other}, too; give each a name of its own")


def refuse_foreign(path: str | os.PathLike, kind: Kind, refused: type[HvdscaleError] = UsageError) -> None:
    """Raise ``refused`` where something is at the path that is no file, or neither empty nor of this kind."""
    try:
        with open_input(path, buffering=0) as file:
            head = file.read(HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refused(f"{os.fspath(path)}: {NO_FILE}, and is not replaced; give another name"
                      if error.strerror == NO_FILE else
                      f"{os.fspath(path)}: cannot be written: {error.strerror}") from None
    if head and not kind.begins(head):
        raise refused(f"{os.fspath(path)}: is not {kind.name}, and would be lost; nothing is replaced but that. Move "
                      "it away, or give another name")


def replace_own(path: str | os.PathLike, content: str | bytes, refused: type[HvdscaleError] = HvdscaleError,
                sync: bool = True) -> None:
    """``write_whole`` that raises ``refused`` where a file is there that begins otherwise, so of another kind."""
    def start(data: bytes) -> bytes:
        return b"".join(data.partition(b"," if data[:1].isalpha() else b"\0")[0].split())[:SAME_BYTES]
    data = as_bytes(content)
    begin = start(data[:HEAD_BYTES])
    refuse_foreign(path, Kind(f"a file of this kind (it begins otherwise than {begin.decode(errors='replace')!r})",
                              lambda head: start(head) == begin), refused)
    with writing(path, refused):
        write_whole(path, data, sync)
