"""What a layer was given, or what the model returned, where the code of a workload fails.

    with explained(workload, model):
        workload.loss(model, batch)     # ValueError: ...; layer 3, Linear(...), was given a tensor of shape (8, 12)
"""
from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import is_of_user_code
from ..workload import Workload, kind_of

LONGEST = 80            # characters of a layer; of a longer one its class is named


@contextlib.contextmanager
def explained(workload: Workload, model: nn.Module) -> Iterator[None]:
    """Add a note for errors.describe_raised to an exception from inside."""
    running: list[tuple[nn.Module, str]] = []
    returned: list[str] = []

    def enter(module: nn.Module, given: tuple) -> None:
        running.append((module, ", ".join(map(kind_of, given)) or "nothing"))

    def leave(module: nn.Module, _: tuple, result: object) -> None:
        while running and running.pop()[0] is not module:           # one whose error was caught
            pass
        if module is model:
            returned[:] = [kind_of(result)]
    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    except Exception as error:
        notes = [f"{_name(model, running[-1][0])} was given {running[-1][1]}"] if running else [
            f"the model returned {said}" for said in returned]
        if notes and not is_of_user_code(error):
            notes += _built_at(workload)
        error.__notes__ = [*getattr(error, "__notes__", ()), *notes]            # as add_note of Python 3.11
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _built_at(workload: Workload) -> list[str]:
    code = getattr(inspect.unwrap(workload.build), "__code__", None)
    return [f"{workload.name} builds the model at {code.co_filename}:{code.co_firstlineno}"] if code else []


def _name(model: nn.Module, layer: nn.Module) -> str:
    name = next((name for name, module in model.named_modules() if module is layer), "")
    text = repr(layer)
    text = text if len(text) <= LONGEST and "\n" not in text else type(layer).__name__
    return f"layer {name}, {text}," if name else f"the model, {text},"
