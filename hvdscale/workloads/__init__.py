"""The built-in workloads, each named dataset/model."""

import difflib
import os

from ..errors import UsageError, WorkloadError
from ..system.importing import import_object
from ..workload import Workload, problems
from . import cifar, digits, mnist
from .large import imagenet, language, open_images, translation
from .models.plain import ANY_WIDTHS, parse_widths

MODULES = (digits, mnist, cifar, imagenet, open_images, language, translation)
DATASETS = {dataset: module for module in MODULES for dataset in module.MODELS}


def find(name: str) -> Workload:
    """The workload of this name, built-in or module:object; raises UsageError with similar names."""
    path, colon, attribute = name.partition(":")
    if colon and not (path.endswith(".py") or os.sep in path):
        found = import_object(name, "workload")
        if wrong := problems(found):
            raise WorkloadError("\n  ".join([f"{name} is not a usable workload:", *wrong]))
        return found
    dataset, _, model = name.partition("/")
    known = DATASETS[dataset].MODELS[dataset] if dataset in DATASETS else ()
    if model in known and model != ANY_WIDTHS or ANY_WIDTHS in known and parse_widths(model):
        return DATASETS[dataset].workload(dataset, model)
    if colon or path.endswith(".py") or os.path.isfile(f"{path}.py"):
        folder, file = os.path.split(path.removesuffix(".py"))
        where = f", and run the command in {folder}" if os.path.normpath(folder or ".") != "." else ""
        of = "" if attribute else f", where workload is the name of the Workload in {file}.py"
        typed = f"{path}:{attribute}" if attribute else path
        raise UsageError(f"workload {typed!r} is the path of a file; your own workload is named module:object. Give "
                         f"{file}:{attribute or 'workload'}{where}{of}")
    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    own = "" if near else "; your own is module:object, such as job:workload for the object workload in job.py"
    raise UsageError(f"there is no workload {name!r}; {hint}`hvdscale-train --list` names them all{own}")


def names() -> list[str]:
    """The names that ``find`` accepts; WIDTH is a placeholder for a number."""
    return [f"{dataset}/{model}" for dataset, module in DATASETS.items() for model in module.MODELS[dataset]]
