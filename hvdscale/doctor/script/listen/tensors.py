"""Numbers of tensors: samples at fixed places, and digests of them all; the values of a checkpoint."""

import gc
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils._pytree import keystr, tree_flatten_with_path

SAMPLED = 256                   # numbers of a parameter, at most
DESCRIBED = 1 << 16             # numbers of a tensor that enter its description, at least, if it has as many
BRACKETS = re.compile(r"\['?(.*?)'?\]")
MOST_VALUES = 5000              # of a checkpoint that are kept


def sample(values: torch.Tensor) -> np.ndarray:
    """Up to about SAMPLED numbers, at places that depend on the size alone; NaN where another rank has that part."""
    values = values.detach()
    if hasattr(values, "to_local"):
        shape, offset = compute_local_shape_and_global_offset(values.shape, values.device_mesh, values.placements)
        found = np.full(sampled(values), np.nan)
        if values.dim() > 0 and shape[1:] == tuple(values.shape[1:]):       # divided in its first dimension alone
            own, begin = local(values).reshape(-1), offset[0] * math.prod(values.shape[1:])
            places = np.arange(len(found)) * _stride(values.numel()) - begin
            here = (places >= 0) & (places < own.numel())
            found[here] = own[torch.as_tensor(places[here])].double().cpu().numpy()
        return found
    values = values.to_dense() if values.is_sparse else values
    return values.reshape(-1)[::_stride(values.numel())].double().cpu().numpy().copy()


def sampled(values: torch.Tensor) -> int:
    return len(range(0, values.numel(), _stride(values.numel())))


def _stride(numbers: int) -> int:
    return max(1, numbers // SAMPLED)


def local(values: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is divided among the ranks; any other tensor as it is."""
    return values.to_local() if hasattr(values, "to_local") else values


def square_of(parameters: Iterable[torch.Tensor]) -> float:
    """The sum of the squares of this rank's gradients."""
    return sum(float(local(one.grad).detach().double().square().sum()) for one in parameters if one.grad is not None)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """One digest of the numbers of all tensors."""
    whole = hashlib.blake2b(digest_size=8)
    for values in tensors:
        whole.update(local(values.detach()).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def describe(value: Any) -> str:
    """A number as it prints, or a tensor's type and a digest, of a large one at fixed places; 0 for zeros alone."""
    own = local(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)
    if not own.ndim:
        return str(own.item())
    sampled = own.reshape(-1)[::max(1, own.numel() // DESCRIBED)]
    return f"{str(own.dtype).removeprefix('torch.')} {digest([sampled]) if own.any() else 0}"


def flatten(state: Any) -> dict[str, str]:
    """The values of a checkpoint, by their keys."""
    leaves, _ = tree_flatten_with_path(state)
    return {BRACKETS.sub(r".\1", keystr(keys)).lstrip("."): describe(value) for keys, value in leaves[:MOST_VALUES]
            if isinstance(value, (torch.Tensor, int, float, str, bool, np.generic))}


def outermost_modules() -> list[torch.nn.Module]:
    """The modules of the process that are part of no other one."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def named(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of a module by their names without a wrapper."""
    return ((name.replace("module.", ""), one) for name, one in module.named_parameters())


def named_tensors(modules: Iterable[torch.nn.Module]) -> dict[str, torch.Tensor]:
    """Their parameters and buffers, by the module's class, numbered where several have one, and the name in it."""
    found: dict[str, torch.Tensor] = {}
    classes: Counter[str] = Counter()
    for module in modules:
        outer, tensors = type(module).__name__, [*module.named_parameters(), *module.named_buffers()]
        found |= {f"{outer}{classes[outer] or ''}.{name}": values for name, values in tensors}
        classes[outer] += bool(tensors)
    return found


def digest_untrained() -> dict[str, str]:
    """A digest of each buffer and frozen parameter of the process, by its name."""
    return {name: digest([one]) for name, one in named_tensors(outermost_modules()).items() if not one.requires_grad}


def trained_modules() -> dict[str, torch.Tensor]:
    """The parameters with a gradient to be of all outermost modules, by name."""
    return {name: one for module in outermost_modules() for name, one in named(module) if one.requires_grad}


def untaken(parameters: Iterable[torch.Tensor]) -> list[str]:
    """The names of the parameters that have a gradient and are none of these, in modules that have some of these."""
    found, taken = {}, {id(parameter) for parameter in parameters}
    for module in outermost_modules():
        names = {id(one): name for name, one in named(module) if one.grad is not None}
        if names.keys() & taken:
            found |= {at: name for at, name in names.items() if at not in taken}
    return sorted(found.values())


def digest_statistics(modules: Iterable[torch.nn.Module]) -> str:
    """One digest of the running statistics of all normalization in the modules; empty where there are none."""
    found = {id(values): values for module in modules for name, values in module.named_buffers()
             if name.endswith(("running_mean", "running_var"))}
    return digest(found.values()) if found else ""


def names_of(parameters: Iterable[torch.Tensor]) -> list[str]:
    """The shortest name of each parameter in a module of the process; numbered where it has none."""
    found: dict[int, str] = {}
    for name, one in (each for module in outermost_modules() for each in named(module)):
        found[id(one)] = min(found.get(id(one), name), name, key=len)
    return [found.get(id(one), f"parameter {at}") for at, one in enumerate(parameters)]
