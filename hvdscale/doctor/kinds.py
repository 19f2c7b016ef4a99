"""The kinds of findings, in a table of their words: findings.toml beside the checks.

    [gradient.undivided]        a check and a kind of finding; [gradient] has what all its kinds share
    failed = "..."              the verdict, and what differs; of one without a difference, what was seen;
                                unexplained: unseen, as something differs and no cause was seen
    looked_at = "..."           what was compared;  cause: the usual one;  remedy: the next move
    like = "..."                another kind of the check, which has what is not given here

[notes] and the like are sentences by name.

{scale} in the words is a value of the finding, an attribute of what it is about, or another of its words, written as
formatting/templates.py says; {LOCAL} is the word of a script's arguments that stands for a worker's share.
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..formatting.templates import fill
from ..plan.settings import read_toml
from .finding import Finding, Verdict

VERDICTS = {verdict.value.replace(" ", "_"): verdict for verdict in Verdict} | {"unexplained": Verdict.UNSEEN}
DIFFER = ("failed", "warned", "unexplained")


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

    def sentence(self, table: str, name: str, about: Any = None, **values: Any) -> str:
        """The sentence of that name, with its values as in a finding."""
        words = self.checks[table]
        return _Values(words, about, values).say(words[name])

    def sentences(self, table: str, about: Any, met: Mapping[str, object], **values: Any) -> list[str]:
        """The sentences whose names are met, in the order of ``met``."""
        return [self.sentence(table, name, about, **values) for name, is_so in met.items() if is_so]


class _Values(dict):
    """Values by name: those given, else attributes of what a finding is about, else its own words."""

    def __init__(self, words: Mapping[str, str], about: Any, given: Mapping[str, Any]):
        super().__init__({"LOCAL": "{local}", **given})
        self._words, self._about = words, about

    def say(self, words: str) -> str:
        """The words with their values."""
        return fill(words, self)

    def __missing__(self, name: str) -> Any:
        return getattr(self._about, name) if hasattr(self._about, name) else self.say(self._words[name])


JOB = Kinds(Path(__file__).with_name("findings.toml"))
