"""What a layer was given, or what the model returned, where the code of a workload fails.

    with explained(workload, model):
        workload.loss(model, batch)     # ValueError: ...; layer 3, Linear(...), was given a tensor of shape (8, 12)
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import get_ident

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import is_of_user_code
from ..workload import Workload, describe_build, kind_of

LONGEST = 80            # characters of a layer; of a longer one its class is named


@contextlib.contextmanager
def explained(workload: Workload, model: nn.Module) -> Iterator[None]:
    running: list[tuple[nn.Module, tuple]] = []         # layers whose forward has not returned, with their arguments
    returned: list[object] = []                         # by the whole model, at last
    thread = get_ident()                                # hooks are those of all threads

    def enter(module: nn.Module, given: tuple) -> None:
        if get_ident() == thread:
            running.append((module, given))

    def leave(module: nn.Module, _: tuple, result: object) -> None:
        while get_ident() == thread and running and running.pop()[0] is not module:     # whose error was caught
            pass
        if get_ident() == thread and module is model:
            returned[:] = [result]
    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):            # of a value that cannot be looked at
            error.__notes__ = [*getattr(error, "__notes__", ()), *_notes(workload, model, running, returned, error)]
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _notes(workload: Workload, model: nn.Module, running: list[tuple[nn.Module, tuple]], returned: list[object],
           error: Exception) -> list[str]:
    if running:
        layer, given = running[-1]
        name, text = next((name for name, module in model.named_modules() if module is layer), ""), repr(layer)
        text = text if len(text) <= LONGEST and "\n" not in text else type(layer).__name__
        where = f"layer {name}" if name else "the model"
        notes = [f"{where}, {text}, was given {', '.join(map(kind_of, given)) or 'nothing'}"]
    else:
        notes = [f"the model returned {kind_of(result)}" for result in returned]
    if notes and not is_of_user_code(error):
        notes.append(describe_build(workload))
    return [note for note in notes if note]
