"""What a restart did not bring back: values of a checkpoint, of a script or of a job of ours, that are not what they
were."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..formatting.numbers import list_first
from .finding import Kinds

KINDS = Kinds(Path(__file__).with_name("resume") / "findings.toml")
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
OF_GROUP = ".of group "     # in the name of a setting of an optimizer's parameters
ZERO = " 0"                 # how a description ends of a tensor of zeros


def unlike(was: Mapping[str, Any], now: Mapping[str, Any], missing: bool = False) -> list[tuple[str, Any, Any]]:
    """The values that are not what they were: name, then and now. Those that are missing now count if asked, as empty.
    """
    return [(name, value, now.get(name, "")) for name, value in was.items()
            if now.get(name, "") != value and (missing or name in now)]


def describe_tensors(lost: list[tuple[str, str, str]], optimized: Collection[str], begun: Mapping[str, str],
                     saved: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """A kind of finding on what a model has lost, by the names of tensors, then and now; empty for nothing. And its
    values.

    optimized   names of tensors that an optimizer has
    begun       the values of the very beginning, as far as they are known
    saved       the name of each value in the checkpoint, likewise
    """
    names = sorted({name for name, _, now in lost if now})
    parameters = [name for name in names if name in optimized]
    given = dict(names=list_first(parameters or names, 3), count=len(parameters or names), of=len(optimized))
    if parameters:
        lost = [one for one in lost if one[0] in parameters]
        taken = {name: saved[now] for name, was, now in lost if {was, now} <= saved.keys()}
        if len(taken) == len(parameters):
            return "exchanged", given | {"taken": taken[parameters[0]]}
        whole = "initial" if all(begun.get(name) == now for name, _, now in lost) else "other"
        return whole if len(parameters) == len(optimized) else "some", given
    if not {name.partition(".")[0] for name in names} & {name.partition(".")[0] for name in optimized}:
        return "average" if names else "", given
    return "statistics" if all(name.endswith(STATISTICS) for name in names) else "buffers", given


def describe_lost(lost: list[tuple[str, str, str]]) -> tuple[str, dict[str, Any]]:
    """A kind of finding on what an optimizer has lost, ``key.parameter``, then and now; empty for nothing. And its
    values."""
    if not lost:
        return "", {}
    lost = [one for one in lost if OF_GROUP not in one[0]] or lost
    keys = list(dict.fromkeys(name.partition(".")[0] for name, *_ in lost))
    _, was, now = next((one for one in lost if not one[0].startswith("step.")), lost[0])
    types, kind = (was.partition(" ")[0], now.partition(" ")[0]), "other"
    if all(not each or each.endswith(ZERO) for *_, each in lost):
        kind = "empty"
    elif keys == ["step"]:
        kind = "steps"
    elif OF_GROUP in lost[0][0]:
        kind = "settings"
    elif now and types[0] != types[1]:
        kind = "dtype"
    return kind, dict(keys=keys, was=was, now=now, was_type=types[0], now_type=types[1],
                      names=list_first([name for name, *_ in lost], 3))
