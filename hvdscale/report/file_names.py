"""Names of a report's files and anchors: one workload, target and figure have one name in every report.

    section_name(workload, target)      -> "mnist-simple-cnn-nesterov-55000-examples-val-error-below-0.01"
"""
from __future__ import annotations

import hashlib
import os
import re

from ..analysis.trials import JobKey
from ..target import Target

Path = str | os.PathLike[str]
COMPARED = {"<": "below", "<=": "at-most", ">": "above", ">=": "at-least"}
LONGEST_WORKLOAD, LONGEST_TARGET, LONGEST_FILE = 80, 60, 200        # letters
HASHED = 6                  # letters of the hash of what was cut off


def slug(text: object) -> str:
    """Letters, digits, dots, and a dash for all else."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", str(text)).strip("-.")


def cut(text: str, longest: int) -> str:
    """A name of at most that many letters; a hash of the whole keeps shortened names distinct."""
    return text if len(text) <= longest else f"{text[:longest - HASHED - 1]}-{_hash(text)}"


def section_name(workload: JobKey, target: Target | None = None, rest: str = "") -> str:
    """The name of a workload held against a target, each whole unless it is very long.

    rest  what the name ends with where there is no target
    """
    size = f"{workload.train_examples}-examples" if workload.train_examples else ""
    args = "" if workload.model_args in ("", "{}", "null") else workload.model_args
    names = slug("-".join(filter(None, (workload.dataset, workload.model, workload.optimizer, size, args))))
    return "-".join(filter(None, (cut(names, LONGEST_WORKLOAD), target_name(target) if target else rest)))


def target_name(target: Target) -> str:
    """``val-error-below-0.01``; ``at-most`` of ``<=``, ``minus-1`` of ``-1``."""
    value = str(target).removeprefix(f"{target.column}{target.comparison}")
    value = re.sub("^-", "minus-", value)
    return cut(slug(f"{column_name(target.column)}-{COMPARED[target.comparison]}-{value}"), LONGEST_TARGET)


def column_name(column: str) -> str:
    """``val-cross_entropy``; with a hash where the metric's name has more than a file name should."""
    name = re.sub("[^A-Za-z0-9._-]+", "-", column).strip("-")
    return name if name == column.replace("/", "-", 1) else f"{name}-{_hash(column)}"


def unique(name: str, of: object, taken: set[str]) -> str:
    """The name, which is then taken; where it is, one with a hash of ``of``: what it is the name of, in full."""
    found = name if name not in taken else f"{name}-{_hash(str(of))}"
    taken.add(found)
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASHED]
