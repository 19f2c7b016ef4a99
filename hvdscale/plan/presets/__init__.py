"""The recipes that ship with the package: TOML files of keys of hvdscale.plan.settings, beside this one.

    layer, workload = read_config("goyal2017-resnet50")         a preset's name, or the path of a file

A configuration may name its workload, ``workload = "imagenet/resnet_50"``. In a preset the comments say which values
are published, and where, and which are chosen here.
"""
from __future__ import annotations

import importlib.resources
from pathlib import Path

from ...errors import UsageError
from ..settings import read_toml

FOLDER = importlib.resources.files(__name__)


def names() -> list[str]:
    return sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def read_config(config: str) -> tuple[dict, str | None]:
    """The keys and the workload, if any, of a preset or a file; what has a / or ends in .toml is a file."""
    if "/" in config or config.endswith(".toml") or Path(config).is_file():
        layer = read_toml(config)
    elif config in names():
        with importlib.resources.as_file(FOLDER / f"{config}.toml") as path:
            layer = read_toml(path)
    else:
        raise UsageError(f"--config {config}: there is no such preset, and no such file; choose one of "
                         f"{', '.join(names())}, or a file such as job.toml")
    workload = layer.pop("workload", None)
    if not isinstance(workload, str | None):
        raise UsageError(f"{config}: workload = {workload!r} is not a name, such as workload = \"imagenet/resnet_50\"")
    return layer, workload


def title(name: str) -> str:
    """What a preset is, in a line: its file's first."""
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
