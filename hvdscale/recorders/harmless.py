"""Callbacks that never harm the training they watch: what goes wrong in one ends its log, with one warning."""

import functools
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from ..log.record import Recording


class HarmlessRecorder:
    """Writes the log of a run; ``path`` and ``about`` are those of ``hvdscale.record``, which reads the rest from the
    trainer. None of the hooks (``on_...``) of a class derived from it raises."""

    def __init__(self, path: str | os.PathLike[str], **about: Any) -> None:
        self._path, self._about = path, about
        self._run: Recording | None = None
        self._open, self._failed = ExitStack(), False           # what is open of the run; whether the log has ended

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, hook in list(vars(cls).items()):
            if name.startswith("on_"):
                setattr(cls, name, _guarded(hook))


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return None if self._failed else hook(self, *given, **named)
        except Exception as error:
            self._failed, reason = True, f"{type(error).__name__}: {error}"
            with suppress(Exception):
                self._open.close()
            with suppress(Exception):
                if self._run:
                    self._run.close(reason)
            warnings.warn(f"hvdscale's Recorder ends its log in {hook.__name__}, and the training goes on without it: "
                          f"{reason}", stacklevel=2)
            return None
    return guarded
