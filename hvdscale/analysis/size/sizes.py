"""Sizes of workloads as numbers, and the cells that they divide studies into.

A *cell* is a workload at one size: its studies differ in the batch alone. A size comes from the first of these that has
it: a pattern searched in the workload's name (dataset/model), a metaparameter of that name (a column of an imported
table), an argument of the model, or what hvdscale logs: ``parameters`` of the model, ``examples`` of the training set,
``tokens`` of the trial's budget."""
from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import UsageError
from ..best_points import among
from ..studies import Study
from ..trials import JobKey, parameters_of

SUFFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
EXAMPLES, PARAMETERS, TOKENS = "examples", "parameters", "tokens"
MOST_VALUES = 64            # of a metaparameter that is a size
_NUMBER = re.compile(r"\s*((?:(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKMGBT]?)\s*")


@dataclass(frozen=True)
class Size:
    """A size by name, and where to look for it."""

    name: str
    pattern: str | None = None      # with one group, searched in ``dataset/model``; None: the logs' own values

    @classmethod
    def parse(cls, text: str) -> Size:
        """``tokens``, or ``parameters=gpt_([0-9.]+[MB])``; UsageError for anything else."""
        name, equals, pattern = text.strip().partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"--size {text!r}: starts with a name such as parameters or tokens, alone or as "
                             "'parameters=PATTERN' with a pattern for the workload's name")
        if not equals:
            return cls(name)
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise UsageError(f"--size {text!r}: {pattern!r} is not a regular expression: {error}") from None
        if groups != 1:
            raise UsageError(f"--size {text!r}: the pattern has {groups} groups in brackets; it needs one, around the "
                             "number, such as 'parameters=gpt_([0-9.]+[MB])'")
        return cls(name, pattern)


@dataclass(frozen=True, eq=False)
class SizeCell:
    """The studies of one workload at one size, by global batch; ``sizes`` in the order of the names asked for."""

    workload: JobKey
    sizes: tuple[float, ...]
    studies: tuple[Study, ...]

    @property
    def label(self) -> str:
        return f"{self.workload.dataset}/{self.workload.model}"


def parse_size(text: str, what: str = "size") -> float:
    """The number in ``151M``, ``1.2B``, ``7e9`` or ``1,000``; UsageError, naming what it is, for none above 0."""
    found = _NUMBER.fullmatch(text)
    value = float(found[1].replace(",", "").replace("_", "")) * SUFFIXES[found[2]] if found else 0.0
    if not 0 < value < np.inf:
        raise UsageError(f"{what} {text!r} is not a number above 0 such as 7e9, 151M or 1.2B")
    return value


def sizes_of(texts: Iterable[str]) -> tuple[Size, ...]:
    """Sizes from texts, see Size.parse; UsageError for a name twice."""
    found = tuple(map(Size.parse, texts))
    for name, count in Counter(one.name for one in found).items():
        if count > 1:
            raise UsageError(f"--size {name}: is given twice; give each size once")
    return found


def cells_of(studies: Sequence[Study], sizes: Sequence[Size]) -> tuple[SizeCell, ...]:
    """The cells of studies, by size, smallest first. UsageError where a workload does not have a size."""
    found: dict[tuple[tuple[float, ...], JobKey], list[Study]] = {}
    # for the tokens of each budget, which is whole steps, the fewest of those that may have been asked for alike
    ends = {(steps * each, (steps - 1) * each) for study in studies if any(size.name == TOKENS for size in sizes)
            and (each := _tokens_a_step(study)) > 0 for steps in study.budget_steps.tolist() if steps}
    budgets, fewest = {}, 0.0
    for spent, before in sorted(ends):
        fewest = spent if before >= fewest else fewest
        budgets[spent] = fewest
    for study in studies:
        for values, part in _split(study, sizes, budgets):
            found.setdefault((values, study.workload), []).append(part)
    return tuple(SizeCell(workload, values, tuple(own)) for (values, workload), own in
                 sorted(found.items(), key=lambda item: item[0]))


def _split(study: Study, sizes: Sequence[Size], budgets: Mapping[float, float]
           ) -> list[tuple[tuple[float, ...], Study]]:
    """(sizes, the study's trials of these sizes) of each that it has."""
    columns = np.stack([_values(study, size, budgets) for size in sizes], axis=1)
    rows = np.unique(columns[np.isfinite(columns).all(1)], axis=0)
    if len(rows) > MOST_VALUES:
        raise UsageError(f"--size {sizes[0].name}: {study} has {len(rows)} different sizes, {MOST_VALUES} at most; a "
                         "metaparameter that is searched is no size")
    if len(rows) == 1:
        return [(tuple(rows[0].tolist()), study)]
    chosen = [(columns == row).all(1) for row in rows]          # the others count as neither finished nor diverged
    return [(tuple(row.tolist()), replace(among(study, own), repeat=study.repeat & own))
            for row, own in zip(rows, chosen)]


def _values(study: Study, size: Size, budgets: Mapping[float, float]) -> np.ndarray:
    name = f"{study.workload.dataset}/{study.workload.model}"
    if size.pattern is not None:
        found = re.search(size.pattern, name)
        if not found:
            raise UsageError(f"--size {size.name}={size.pattern}: the pattern is not in the name {name!r}")
        return np.full(len(study), parse_size(found[1]))
    own = study.metaparameter(size.name)
    if np.isfinite(own).any():
        return own
    if size.name == TOKENS and (each := _tokens_a_step(study)) > 0 and study.budget_steps.any():
        return np.array([budgets.get(steps * each, np.nan) for steps in study.budget_steps.tolist()])
    arguments = json.loads(study.workload.model_args or "{}")
    there = {PARAMETERS: parameters_of(study.plan(0)), **(arguments if isinstance(arguments, dict) else {}),
             EXAMPLES: study.workload.train_examples}
    sizes = {key: float(value) for key, value in there.items()
             if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0}
    if size.name not in sizes:
        raise UsageError(f"--size {size.name}: the log of {study.workload} does not have it; it has "
                         f"{', '.join([*study.metaparameters, *sizes]) or 'no sizes'}. A pattern takes it from the "
                         f"name, such as '{size.name}=([0-9.]+[kMB])'")
    return np.full(len(study), sizes[size.name])


def _tokens_a_step(study: Study) -> float:          # NaN: unknown
    of_set = (study.plan(0).get("measurement") or {}).get("train_tokens") or np.nan
    return float(study.global_batch * of_set / (study.workload.train_examples or np.nan))
