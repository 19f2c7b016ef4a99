"""The built-in workloads, each named dataset/model."""
from __future__ import annotations

import difflib

from ..errors import UsageError, WorkloadError
from ..importing import import_object
from ..workload import Workload, problems
from . import cifar, digits, imagenet, language, mnist, open_images, translation

MODULES = (digits, mnist, cifar, imagenet, open_images, language, translation)
DATASETS = {dataset: module for module in MODULES for dataset in module.MODELS}


def find(name: str) -> Workload:
    """The workload of this name, built-in or module:object; raises UsageError with those that come near."""
    if ":" in name:
        return _imported(name)
    dataset, _, model = name.partition("/")
    if dataset in DATASETS:
        found = DATASETS[dataset].workload(dataset, model)
        if found is not None:
            return found
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"there is no workload {name!r}; {hint}`hvdscale-train --list` names them all")


def _imported(name: str) -> Workload:
    found = import_object(name, "workload")
    wrong = problems(found)
    if wrong:
        raise WorkloadError("\n  ".join([f"{name} is not a workload that can be trained:", *wrong]))
    return found


def names() -> list[str]:
    """What ``find`` takes; WIDTH stands for a number."""
    return [f"{dataset}/{model}" for dataset, module in DATASETS.items() for model in module.MODELS[dataset]]
