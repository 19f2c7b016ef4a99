"""The kinds of findings, in a table of their words: findings.toml beside the checks.

    [gradient.undivided]        a check and a kind of finding; [gradient] has what all its kinds share
    failed = "..."              the verdict, and what differs; of one that is neither failed nor warned, what was seen
    looked_at = "..."           what was compared;  cause: the usual one;  remedy: the next move
    like = "..."                another kind of the check, which has what is not given here

[notes] and the like are sentences by name.

{scale} in the words is a value of the finding, or an attribute of what it is about. A number that counts nothing is
written with three digits, a list as 1, 2 and 4; {passes:pass/passes} and {updates:update} count: 1 pass, 2 updates.
"""
from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from string import Formatter
from typing import Any

from ..formatting.numbers import counted, listed, number
from ..plan.settings import read_toml
from .finding import Finding, Verdict

VERDICTS = {verdict.value.replace(" ", "_"): verdict for verdict in Verdict}
DIFFER = ("failed", "warned")


class Kinds:
    """The table of a file."""

    def __init__(self, path: Path):
        self.checks = read_toml(path)

    def finding(self, check: str, kind: str, about: Any = None, *, by: float | None = None, limit: float | None = None,
                where: str = "", rows: tuple = (), cause: str = "", **values: Any) -> Finding:
        """A finding in the words of its kind.

        about   what has the values that are not given;  values  by name
        cause   one of [check.causes], whose cause and remedy go before the kind's
        """
        table, own = self.checks[check], self.checks[check][kind]
        words = {**table, **table.get(own.get("like"), {}), **own, **(table["causes"][cause] if cause else {})}
        known = _Values(words, about, values)
        name = next(name for name in own if name in VERDICTS)
        differs = name in DIFFER
        return Finding(check, VERDICTS[name], known.say(words["looked_at"] if differs else words[name]),
                       known.say(words[name]) if differs else "", by, limit, known.say(words.get("cause", "")),
                       known.say(words.get("remedy", "")), rows, where)

    def sentence(self, table: str, name: str, about: Any, **values: Any) -> str:
        """The sentence of that name, with its values as in a finding."""
        words = self.checks[table]
        return _Values(words, about, values).say(words[name])

    def sentences(self, table: str, about: Any, met: Mapping[str, object], **values: Any) -> list[str]:
        """Those whose names are met, in the order of ``met``."""
        return [self.sentence(table, name, about, **values) for name, is_so in met.items() if is_so]


class _Values(dict):
    """Values by name: those given, else attributes of what a finding is about, else its own words."""

    def __init__(self, words: Mapping[str, str], about: Any, given: Mapping[str, Any]):
        super().__init__(given)
        self._words, self._about = words, about

    def say(self, words: str) -> str:
        """The words with their values."""
        return FORMATTER.vformat(words, (), self)

    def __missing__(self, name: str) -> Any:
        return getattr(self._about, name) if hasattr(self._about, name) else self.say(self._words[name])


class _Formatter(Formatter):
    """Values as the words of findings have them."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, (list, tuple)):
            return listed(self.format_field(one, spec) for one in value)
        if spec[:1].isalpha():
            return counted(value, *spec.split("/"))
        if isinstance(value, Real) and not isinstance(value, Integral) and not spec:
            return number(value)
        return format(value, spec)


FORMATTER = _Formatter()
JOB = Kinds(Path(__file__).with_name("findings.toml"))
