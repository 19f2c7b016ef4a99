"""Values and keys as TOML."""

import json
import re
from collections.abc import Mapping


def value_as_toml(value: object) -> str:
    """A value, floats in full precision; text with a backslash, such as a pattern, between apostrophes where it can."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        literal = "\\" in value and value.isprintable() and "'" not in value
        return f"'{value}'" if literal else f'"{escape(value)}"'
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key_as_toml(name)} = {value_as_toml(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_as_toml, value))}]"
    return repr(value)


def key_as_toml(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{escape(name)}"'


def escape(text: str) -> str:
    """The text within a basic string, without quotes; also safe in a comment."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
