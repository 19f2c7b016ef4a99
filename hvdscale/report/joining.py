"""How to report together on workloads of imported logs that may differ in their names alone."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.grouping import group_by
from ..analysis.trials import JobKey
from ..formatting.numbers import list_first

OPTIONS = {"model": "--model", "optimizer": "--optimizer", "train_examples": "--set-size"}     # of an import
KINDS = ("mllog", "rcp")            # of the imports that have them
SAID = {"train_examples": "training examples"}
MOST = 3


def describe_joining(workloads: Iterable[JobKey], attributes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """A sentence on each data set whose workloads differ only in what an import can name.

    attributes  of the logs; () where none is an import that could
    """
    if not any((one.get("imported") or {}).get("kind") in KINDS for one in attributes):
        return ()
    alike = group_by(sorted(workloads), lambda one: (one.dataset, one.model_args, one.batch_schedule, one.version))
    return tuple(_describe(found) for found in alike.values() if len(found) > 1)


def _describe(workloads: Sequence[JobKey]) -> str:
    values = {name: list(dict.fromkeys(str(getattr(one, name) or "unknown") for one in workloads)) for name in OPTIONS}
    differ = {name: found for name, found in values.items() if len(found) > 1}
    said = " and ".join(f"{SAID.get(name, name)} ({list_first(found, MOST)})" for name, found in differ.items())
    options = " and ".join(OPTIONS[name] for name in differ)
    return (f"{workloads[0].dataset}: its workloads differ in {said}. If these are names of one job, import the "
            f"logs with the same {options} to report on them together.")
