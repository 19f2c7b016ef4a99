"""The settings of a run: files of YAML, JSON and TOML, and texts, that lie in its folder, flat as outer.inner."""
from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...plan.settings import read_toml
from ..files import json_of, text_of
from .run import is_number, value_of

NAME = re.compile(r"(?:config|cfg|args|arguments|params|h(?:yper)?params|hyperparameters|opts?|options|settings|flags|"
                  r"(?:train(?:ing)?|run|job|exp(?:eriment)?|resolved)_(?:args|config)|meta_?data|run_?info)"
                  r"\.(?P<end>json|ya?ml|toml|txt)", re.I)
BELOW = ((), (".hydra",))               # folders in a run's folder that have its settings


@lru_cache(maxsize=64)
def settings_beside(folder: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(scalars, names of the files) of the settings that lie in a run's folder, see ``with_short_names``."""
    found: dict[str, Any] = {}
    files = []
    for below in BELOW:
        inner = os.path.join(folder, *below)
        for name in sorted(os.listdir(inner)) if os.path.isdir(inner) else ():
            if match := NAME.fullmatch(name):
                found |= read_settings(os.path.join(inner, name), match["end"].lower())
                files.append(name)
    return with_short_names(found), tuple(files)


def with_short_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by their last names, too, where these are alone."""
    short = [key.rpartition(".")[2] for key in found]
    often = Counter(short)
    return {name: value for name, value in zip(short, found.values()) if often[name] == 1} | dict(found)


def read_settings(path: str, end: str) -> dict[str, Any]:
    """The scalars of a file of settings: those of inner tables as outer.inner, W&B's ``value`` by the name above it."""
    if end in ("json", "toml"):
        data = json_of(path) if end == "json" else read_toml(path)
        return flat(data) if isinstance(data, dict) else {}
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []           # (indent, key) of the mappings that a line is in
    for line in text_of(path).splitlines():
        key, colon, value = line.partition(" #")[0].strip().partition(":")
        indent = len(line) - len(line.lstrip())
        if colon and key[:1] not in ("#", "-") and len(above) < 32:
            while above and above[-1][0] >= indent:
                above.pop()
            above.append((indent, key.strip().strip("'\"")))
            if value.strip():
                found[".".join(name for _, name in above).removesuffix(".value")] = value_of(value)
    return found


def flat(found: Mapping[str, Any], above: str = "", depth: int = 0) -> dict[str, Any]:
    """The scalars in objects, those of inner ones as outer.inner, and lists of numbers as they are written."""
    scalars: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict) and depth < 32:
            scalars |= flat(value, f"{above}{key}.", depth + 1)
        elif isinstance(value, (int, float, str)):
            scalars[f"{above}{key}"] = value
        elif isinstance(value, list) and 0 < len(value) < 1000 and all(map(is_number, value)):
            scalars[f"{above}{key}"] = str(value)
    return scalars
