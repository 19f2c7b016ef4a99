"""The part ``job`` of a plan: by what a log knows the user's code and data, so that no run resumes on others.

    {"source": {"job.py": digest}, "defaults": {"lr": 0.05}, "model": {"torch": "2.13.0", "parameters": digest,
     "lines": ["Sequential(", ...]}, "data": {"train": {"examples": 1197, "first": digest, "last": digest}, ...},
     "accepted": {key_of(earlier job): "job.py differs"}}

The source of a built-in workload is {"hvdscale": version}: a later version is no other job.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import zip_longest
from typing import Any

from ..errors import UsageError
from .plan import Execution
from .settings import flat

VERSION = "hvdscale"            # in place of the files of a built-in workload
# keys of a workload's defaults that are of a place, or of how a run is carried out
OF_PLACE = frozenset({"data_dir", "cache_dir", "metaparameters", "init_from", "log", "checkpoint", "resume",
                      "save_model", "overwrite", "take_over", "max_local_batch",
                      *(field.name for field in fields(Execution))}) - {"local_batch", "accumulate"}
ACCEPT = "--accept-changes resumes and records both"

Job = Mapping[str, Any]


def changes_of(then: Job, now: Job) -> list[str]:
    """What differs, each in words; [] where nothing that both know does."""
    old, new = (flat(_part(job, "defaults")) for job in (then, now))
    known = old and new and not (is_built_in(then) or is_built_in(now))
    differ = [f"{name} {old.get(name, 'not set')} -> {new.get(name, 'not set')}"
              for name in {**old, **new} if known and old.get(name) != new.get(name)]
    return [*_source(_part(then, "source"), _part(now, "source")),
            *([f"defaults: {', '.join(differ)}"] if differ else []),
            *_model(_part(then, "model"), _part(now, "model")), *_data(_part(then, "data"), _part(now, "data"))]


def refuse_changes(then: Job, now: Job, accept: bool, where: str, instead: str) -> dict[str, str]:
    """Raise UsageError naming what differs; accepted: {key of the earlier job: what differs}."""
    changes = "; ".join(changes_of(then, now))
    if changes and not accept:
        raise UsageError(f"{where} is of another job: {changes}. {instead}; {ACCEPT}")
    return {**_part(then, "accepted"), **({key_of(then): changes} if changes else {})}


def have_same_parameters(then: Job, now: Job) -> bool:
    """Whether the models have parameters of the same names and shapes, as far as both are known."""
    old, new = (_part(job, "model").get("parameters") for job in (then, now))
    return not old or not new or old == new


def is_built_in(job: Job) -> bool:
    return VERSION in _part(job, "source")


def note_version(then: Job, now: Job) -> list[str]:
    """A line for the user where a built-in workload is that of another hvdscale."""
    old, new = (_part(job, "source").get(VERSION) for job in (then, now))
    return [f"hvdscale was {old}, is now {new}"] if old and new and old != new else []


def key_of(job: Job) -> str:
    """A digest of source and data; "" where neither is known."""
    source = [] if is_built_in(job) else sorted(map(str, _part(job, "source").values()))
    known = [source, _part(job, "data")]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12] if any(known) else ""


def without_lines(job: Job) -> Job:
    """The same for logs of thousands of trials."""
    model = {name: value for name, value in _part(job, "model").items() if name != "lines"}
    return {**job, "model": model} if model else job


def _part(job: Job, name: str) -> Mapping[str, Any]:
    found = job.get(name)
    return found if isinstance(found, Mapping) else {}


def _source(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if not then or not now or VERSION in {*then, *now}:
        return
    for file in sorted({*then, *now}):
        if file in then and file in now:
            if then[file] != now[file]:
                yield f"{file} differs"
        elif file in now and now[file] not in then.values():
            yield f"{file} is new"
        elif file in then and then[file] not in now.values():
            yield f"{file} is gone"


def _model(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The first line that differs; the form of lines is torch's, so they are compared under one version of it."""
    lines = [found for found in (model.get("lines") for model in (then, now)) if isinstance(found, list)]
    if then.get("torch") == now.get("torch") and len(lines) == 2:
        for old, new in zip_longest(*lines, fillvalue="no further line"):
            if old != new:
                yield f"model: {str(old).strip()} -> {str(new).strip()}"
                return
    if not have_same_parameters({"model": then}, {"model": now}):
        yield "model: the names or shapes of its parameters differ"


def _data(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for split in then:
        old, new = _part(then, split), _part(now, split)
        if old and new and old.get("examples") != new.get("examples"):
            yield f"data: {split} had {old.get('examples')} examples, has {new.get('examples')}"
            continue
        for end in ("first", "last"):
            if old.get(end) and new.get(end) and old[end] != new[end]:
                yield f"data: the {end} example of {split} differs"
