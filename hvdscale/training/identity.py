"""By what a log knows its job: digests of the workload's source, model and data, and its defaults; see plan.job."""
from __future__ import annotations

import json
import math
import re
import sys

import torch
from torch import nn

from .. import __version__
from ..plan.job import OF_PLACE, VERSION
from ..plan.settings import key_of
from ..system.source import digest_of, digest_source
from ..workload import Data, Workload

MOST_LINES, LONGEST_LINE = 1000, 200
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def identify(name: str, workload: Workload, data: Data | None, model: nn.Module | None) -> dict:
    """The part ``job`` of the plans of a workload of this name, module:object or built-in; None: unknown."""
    own = ":" in name
    defaults = {key: value for key, value in workload.defaults.items() if key_of(key) not in OF_PLACE}
    found = {"source": digest_source(sys.modules[name.partition(":")[0]]) if own else {VERSION: __version__},
             "defaults": json.loads(json.dumps(defaults, default=repr)),
             "model": {} if model is None else describe_model(model, with_lines=own),
             "data": {} if data is None else data.digests}
    return {part: value for part, value in found.items() if value}


def describe_model(model: nn.Module, with_lines: bool) -> dict:
    """The number of its parameters, a digest of their names and shapes, and the lines that it prints as; {} where it
    cannot be printed, or its parameters are not made yet."""
    try:
        shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
        count = sum(math.prod(shape) for _, shape in shapes)
        lines = [line[:LONGEST_LINE] for line in ADDRESS.sub("0x", repr(model)).splitlines()] if with_lines else []
    except Exception:                                           # of the user's __repr__
        return {}
    rest = [f"{len(lines) - MOST_LINES} more: {digest_of(lines[MOST_LINES:])}"] if len(lines) > MOST_LINES else []
    return {"torch": torch.__version__.partition("+")[0], "parameters": digest_of(shapes),
            "count": count, **({"lines": lines[:MOST_LINES] + rest} if lines else {})}
