"""The recipes that ship with the package: TOML files of keys of hvdscale.plan.settings, beside this one.

    layer, workload = read_config("goyal2017-resnet50")         a preset's name, or the path of a file

A configuration may name its workload, ``workload = "imagenet/resnet_50"``. A file of presets is one, or has several as
tables: [preset.cifar10-resnet8] of shallue2019.toml is shallue2019-cifar10-resnet8, over the keys that they share. The
comments say which values are published, and where, and which are chosen here.
"""

import importlib.resources
from functools import lru_cache
from pathlib import Path

from ...errors import UsageError
from ..settings import read_toml


@lru_cache
def _presets() -> dict[str, dict]:
    found: dict[str, dict] = {}
    for file in importlib.resources.files(__name__).iterdir():
        if file.name.endswith(".toml"):
            with importlib.resources.as_file(file) as path:
                shared = read_toml(path)
            stem, own = file.name.removesuffix(".toml"), shared.pop("preset", None)
            found |= {f"{stem}-{name}": {**shared, **layer} for name, layer in own.items()} if own else {stem: shared}
    return found


def names() -> list[str]:
    return sorted(_presets())


def read_config(config: str) -> tuple[dict, str | None]:
    """The keys and the workload, if any, of a preset or a file; what has a / or ends in .toml is a file."""
    if "/" in config or config.endswith(".toml") or Path(config).is_file():
        layer = read_toml(config)
    elif config in names():
        layer = {name: value for name, value in _presets()[config].items() if name != "title"}
    else:
        raise UsageError(f"--config {config}: there is no such preset, and no such file; choose one of "
                         f"{', '.join(names())}, or a file such as job.toml")
    workload = layer.pop("workload", None)
    if not isinstance(workload, str | None):
        raise UsageError(f"{config}: workload = {workload!r} is not a name, such as workload = \"imagenet/resnet_50\"")
    return layer, workload


def title(name: str) -> str:
    """What a preset is, in a line."""
    return str(_presets()[name]["title"])
