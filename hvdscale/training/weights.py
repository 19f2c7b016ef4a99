"""A model's state dict in a file: --init-from reads it, --save-model writes it."""

import io
import os

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, UsageError
from ..formatting.numbers import list_first
from ..system.inputs import read_input
from ..system.outputs import MODEL, refuse_foreign
from ..workloads.files import reading
from .checkpoint import write

SHOWN = 8           # names of each kind listed in an error


def load_weights(model: nn.Module, path: str) -> None:
    """Load a file's state dict into the model; raises UsageError naming what does not match."""
    given, wanted = _read(path), model.state_dict()
    wrong = [_list_names("has no", wanted.keys() - given.keys()),
             _list_names("has", given.keys() - wanted.keys(), ", which the model lacks")]
    both = [name for name in wanted if name in given and given[name].shape != wanted[name].shape]
    wrong.append(_list_names("has other shapes:", {
        f"{name} {tuple(given[name].shape)} where the model has {tuple(wanted[name].shape)}" for name in both}))
    if any(wrong):
        hint = ""
        if given and all(name.startswith("module.") for name in given):
            hint = "; DistributedDataParallel adds the prefix module.: save its .module.state_dict()"
        raise UsageError(f"--init-from {path} does not fit the model: it {'; it '.join(filter(None, wrong))}{hint}")
    model.load_state_dict(given)


def save_weights(model: nn.Module, path: str) -> None:
    """Write the model's state dict, whole or not at all; raises CheckpointError, also for another file there."""
    refuse_foreign(path, MODEL, CheckpointError)
    write(path, {name: values.detach().cpu() for name, values in model.state_dict().items()})


def refuse_unwritable(path: str) -> None:
    """Raise UsageError if ``save_weights`` could not write, or would replace another file; called before training."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        reason = "is a folder" if os.path.isdir(path) else f"{folder} is not a writable folder"
        raise UsageError(f"--save-model {path}: {reason}")
    refuse_foreign(path, MODEL)


def _read(path: str) -> dict[str, Tensor]:
    with reading(f"--init-from {path}", UsageError):
        data = read_input(path)
    try:
        given = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception:           # of many types, and torch's message suggests loading it anyway
        given = None
    if not isinstance(given, dict) or not all(isinstance(values, Tensor) for values in given.values()):
        raise UsageError(f"--init-from {path}: is not a plain state dict of names and tensors, as "
                         "torch.save(model.state_dict(), FILE) writes")
    return given


def _list_names(what: str, names, also: str = "") -> str:
    return f"{what} {list_first(sorted(names), SHOWN)}{also}" if names else ""
