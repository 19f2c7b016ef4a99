"""Callbacks that never harm the training they watch: what goes wrong in one ends its log, with one warning."""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from ..log.record import Recording

Watcher = TypeVar("Watcher", bound=type)


def harmless(watcher: Watcher) -> Watcher:
    """The class of a callback, none of whose hooks (``on_...``) raises.

    The class has ``_run``, a Recording or None, and ``_open``, what is open of it.
    """
    for name, hook in list(vars(watcher).items()):
        if name.startswith("on_"):
            setattr(watcher, name, _guarded(hook))
    return watcher


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        if getattr(self, "_failed", False):
            return None
        try:
            return hook(self, *given, **named)
        except Exception as error:
            self._failed = True
            _end(self._run, self._open, f"{type(error).__name__}: {error}")
            warnings.warn(f"hvdscale's Recorder ends its log in {hook.__name__}, and the training goes on without it: "
                          f"{type(error).__name__}: {error}", stacklevel=2)
            return None
    return guarded


def _end(run: Recording | None, opened: ExitStack, reason: str) -> None:
    """Closes a log as INCOMPLETE, whatever state it is in."""
    with suppress(Exception):
        opened.close()
    with suppress(Exception):
        if run:
            run.close(reason)
