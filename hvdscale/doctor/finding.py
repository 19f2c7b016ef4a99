"""What a check found: a plain record. Its words are in a table of kinds, findings.toml beside the checks:

    [gradient.undivided]        a check and a kind of finding; [gradient] has what all its kinds share
    failed = "..."              the verdict, and what differs; of one without a difference, what was seen;
                                unexplained: unseen, as something differs and no cause was seen
    where = "..."               file:line of the call that it is about, unless that is given
    looked_at = "..."           what was compared;  cause: the usual one;  remedy: the next move
    verdict = "warned"          of a cause, such as one with an innocent reading
    lightning = "..."           the next move with that library, by the option to change
    like = "..."                another kind of the check, which has what is not given here

A kind of a line or two is written in its check's table: mean.passed = "...".

[notes] and the like are sentences by name.

{scale} in the words is a value of the finding, an attribute of what it is about, or another of its words, written as
formatting/numbers.py says; {LOCAL} is the word of a script's arguments that stands for a worker's share.

At the end, the kinds of what a restart did not bring back: values of a checkpoint, of a script or of a job of ours.
"""

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import HvdscaleError, WorkersError
from ..formatting.numbers import fill, list_first
from ..plan.settings import read_toml

ENDED = "the job's own code raised an error, which ended this check"


class Verdict(str, Enum):
    """The outcome of a check. It passes only if it saw what it judges; else that was unseen, or there was nothing to
    judge. It warns of what has an innocent reading as well."""

    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    UNSEEN = "unseen"
    NOT_APPLICABLE = "not applicable"

    __str__ = str.__str__


VERDICTS = {verdict.value.replace(" ", "_"): verdict for verdict in Verdict} | {"unexplained": Verdict.UNSEEN}
DIFFER = ("failed", "warned", "unexplained")
Choice = Mapping[str, object]       # conditions by name
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
OF_GROUP = ".of group "     # in the name of a setting of an optimizer's parameters
ZERO = " 0"                 # how a description ends of a tensor of zeros


@dataclass(frozen=True)
class Finding:
    """One check's outcome."""

    check: str
    verdict: Verdict
    looked_at: str              # what was compared, in words; for a check that saw nothing or does not apply, why
    differs: str = ""           # for a check that failed or warns: what differs from what
    by: float | None = None     # the difference relative to the larger side; None: no number measures it
    limit: float | None = None  # the allowed one
    cause: str = ""             # the usual one
    remedy: str = ""            # the next move
    where: str = ""             # file:line of the call that it is about


def carried_out(name: str, check: Callable[[], Finding]) -> Finding:
    """Run the check; an error raised by the job's own code becomes a failed finding."""
    try:
        return check()
    except WorkersError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        differs = str(error) if isinstance(error, HvdscaleError) else (
            f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
        cause = "the check calls the job as a run on another number of workers would"
        remedy = "fix the error; `hvdscale-train WORKLOAD --steps 2` may show it too"
        return Finding(name, Verdict.FAILED, ENDED, differs, cause=cause, remedy=remedy)


def trace_cause(finding: Finding, findings: Sequence[Finding], explains: Mapping[str, Collection[str]]) -> Finding:
    """The finding, with the cause of the first other failure that ``explains`` it: by check, those that fail too."""
    failed = {one.check: one for one in findings if one.verdict == Verdict.FAILED and one.looked_at != ENDED}
    for check, explained in explains.items() if finding.verdict == Verdict.FAILED else ():
        if check in failed and finding.check in explained:
            return replace(finding, cause=failed[check].cause, remedy=f"see the check {check!r} first")
    return finding


def first_met(choice: Choice) -> str:
    """The first name whose condition is met; empty where none is."""
    return next((name for name, is_so in choice.items() if is_so), "")


class Kinds:
    """The table of a file."""

    def __init__(self, path: Path):
        self.checks = read_toml(path)

    def finding(self, check: str, kind: str | Choice, about: Any = None, *, by: float | None = None,
                limit: float | None = None, where: str = "", cause: str | Choice = "", **values: Any) -> Finding:
        """A finding in the words of its kind; of several, the first that is met and that the check has. The values that
        are not given are attributes of ``about``; ``cause`` is one of [check.causes], or the first of several that is
        met, whose cause and remedy, and verdict, go before the kind's."""
        table = self.checks[check]
        own = table[kind if isinstance(kind, str) else first_met({
            name: name in table and is_so for name, is_so in kind.items()})]
        cause = cause if isinstance(cause, str) else first_met(cause)
        words = {**table, **table.get(own.get("like"), {}), **own, **(table["causes"][cause] if cause else {})}
        name = next(name for name in own if name in VERDICTS)
        seen, differs = (words["looked_at"], words[name]) if name in DIFFER else (words[name], "")
        name = words.get("verdict", name)
        seen, differs, cause, remedy, where = (fill(text, _Values(words, about, values)) for text in (
            seen, differs, words.get("cause", ""), words.get(getattr(about, "library", ""), words.get("remedy", "")),
            where or words.get("where", "")))
        return Finding(check, VERDICTS[name], seen, differs, by, limit, cause, remedy, where if differs else "")

    def sentence(self, table: str, name: str, about: Any = None, **values: Any) -> str:
        """The sentence of that name, with its values as in a finding."""
        return fill(self.checks[table][name], _Values(self.checks[table], about, values))

    def sentences(self, table: str, about: Any, met: Mapping[str, object], **values: Any) -> list[str]:
        """The sentences whose names are met, in the order of ``met``."""
        return [self.sentence(table, name, about, **values) for name, is_so in met.items() if is_so]


class _Values(dict):
    """Values by name: those given, else attributes of what a finding is about, else its own words."""

    def __init__(self, words: Mapping[str, str], about: Any, given: Mapping[str, Any]):
        super().__init__({"LOCAL": "{local}", **given})
        self._words, self._about = words, about

    def get(self, name: str, default: Any = None) -> Any:
        """As a part that may be left out asks for it: what is given, or an attribute."""
        return self[name] if name in self or hasattr(self._about, name) else default

    def __missing__(self, name: str) -> Any:
        return getattr(self._about, name) if hasattr(self._about, name) else fill(self._words[name], self)


JOB = Kinds(Path(__file__).with_name("findings.toml"))
OF_RESTARTS = Kinds(Path(__file__).with_name("resume") / "findings.toml")


def unlike(was: Mapping[str, Any], now: Mapping[str, Any], missing: bool = False) -> list[tuple[str, Any, Any]]:
    """The values that are not what they were: name, then and now. Those missing now count if asked, as empty."""
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
    """A kind of finding, or none, on what an optimizer lost, ``key.parameter``, then and now; and its values."""
    if not lost:
        return "", {}
    lost = [one for one in lost if OF_GROUP not in one[0]] or lost
    keys = list(dict.fromkeys(name.partition(".")[0] for name, *_ in lost))
    _, was, now = next((one for one in lost if not one[0].startswith("step.")), lost[0])
    was_type, now_type = (each.partition(" ")[0] for each in (was, now))
    kind = first_met({"empty": all(not each or each.endswith(ZERO) for *_, each in lost), "steps": keys == ["step"],
                      "settings": OF_GROUP in lost[0][0], "dtype": now and was_type != now_type, "other": True})
    return kind, dict(keys=keys, was=was, now=now, was_type=was_type, now_type=now_type,
                      names=list_first([name for name, *_ in lost], 3))
