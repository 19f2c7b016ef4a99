"""What a restart did not bring back: values of a checkpoint, of a script or of a job of ours, that are not what they
were."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..formatting.numbers import list_first
from .finding import Kinds

KINDS = Kinds(Path(__file__).with_name("resume") / "findings.toml")
OF_GROUP = ".of group "     # in the name of a setting of an optimizer's parameters
ZERO = " 0"                 # how a description ends of a tensor of zeros


def unlike(was: Mapping[str, Any], now: Mapping[str, Any], missing: bool = False) -> list[tuple[str, Any, Any]]:
    """The values that are not what they were: name, then and now. Those that are missing now count if asked, as empty.
    """
    return [(name, value, now.get(name, "")) for name, value in was.items()
            if now.get(name, "") != value and (missing or name in now)]


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
