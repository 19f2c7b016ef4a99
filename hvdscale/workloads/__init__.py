"""The built-in workloads, each named dataset/model."""
from __future__ import annotations

import difflib
import os

from ..errors import UsageError, WorkloadError
from ..system.importing import import_object
from ..workload import Workload, problems
from . import cifar, digits, imagenet, language, mnist, open_images, translation

MODULES = (digits, mnist, cifar, imagenet, open_images, language, translation)
DATASETS = {dataset: module for module in MODULES for dataset in module.MODELS}


def find(name: str) -> Workload:
    """The workload of this name, built-in or module:object; raises UsageError with those that come near."""
    path, colon, attribute = name.partition(":")
    is_path = path.endswith(".py") or os.sep in path
    if colon and not is_path:
        return _imported(name)
    dataset, _, model = name.partition("/")
    if dataset in DATASETS:
        found = DATASETS[dataset].workload(dataset, model)
        if found is not None:
            return found
    if colon or path.endswith(".py") or os.path.isfile(f"{path}.py"):
        raise UsageError(_refusal_of_path(path, attribute))
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    own = "" if near else "; one of your own is module:object, as job:workload for the object workload of job.py"
    raise UsageError(f"there is no workload {name!r}; {hint}`hvdscale-train --list` names them all{own}")


def _refusal_of_path(path: str, attribute: str) -> str:
    """What to say of a file where a module is asked for, with the name that would do."""
    folder, file = os.path.split(path.removesuffix(".py"))
    where = f", and run the command in {folder}" if os.path.normpath(folder or ".") != "." else ""
    of = "" if attribute else f", where workload is the name that {file}.py gives its Workload"
    typed = f"{path}:{attribute}" if attribute else path
    return (f"workload {typed!r} is the path of a file; a workload of your own is named module:object. Give "
            f"{file}:{attribute or 'workload'}{where}{of}")


def _imported(name: str) -> Workload:
    found = import_object(name, "workload")
    wrong = problems(found)
    if wrong:
        raise WorkloadError("\n  ".join([f"{name} is not a workload that can be trained:", *wrong]))
    return found


def names() -> list[str]:
    """What ``find`` takes; WIDTH stands for a number."""
    return [f"{dataset}/{model}" for dataset, module in DATASETS.items() for model in module.MODELS[dataset]]
