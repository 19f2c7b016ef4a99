"""What a report assumes unless it is asked otherwise, and checks of the shares that a user sets: for the commands,
whose help need not import the analysis."""
from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

CONFIDENCE = 0.95
PERFECT_WITHIN = 0.25       # B S may be this share above the smallest B S
ALIKE_WITHIN = "2%"         # two sides are alike where they differ by this much
LOSS_WITHIN = "1%"          # a batch does as well as the best one where its loss is this much above
USEFUL_WITHIN = 0.20        # S may be this share above the fewest steps
RULES = ("linear", "sqrt", "none", "linear<=8", "adam_sqrt")
RULE_WITHIN = 0.20          # a rule loses where it needs this share more steps than the tuned optimum
RUN_DEVIATION = 0.10        # of log S between runs of a setting, assumed where no setting ran twice
PROBE_STEPS = 50            # of a run that only times
FIRST, LASTING = CROSSINGS = ("first", "lasting")       # where a run meets its target, see steps.py


def confidence_of(value: float, name: str = "--confidence") -> float:
    """The confidence level, as it is; raises UsageError unless it is between 0 and 1."""
    if not 0 < value < 1:
        raise UsageError(f"{name} {value:g}: lies between 0 and 1, such as 0.95")
    return value


def share_of(name: str, text: str) -> float:
    """The share in the option ``name``, written as 0.1 or 10%; raises UsageError for anything else."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} {text}: is a share, 0 or more, such as 0.1 or 10%")
    if value > 1 and not number.endswith("%"):
        raise UsageError(f"{name} {text}: is a share, so this is {value:.0%}; for {text} % write {number}%")
    return value


@dataclass(frozen=True)
class Tolerance:
    """How much more loss is allowed: ``amount`` in the metric's unit, or ``relative``, as a share of a loss."""

    amount: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str, name: str = "tolerance") -> Tolerance:
        """The tolerance written as ``0.01`` or ``1%``; raises UsageError naming the option for anything else."""
        if text.strip().endswith("%"):
            return cls(share_of(name, text), True)
        try:
            amount = float(text)
            if not 0 < amount < float("inf"):
                raise ValueError
        except ValueError:
            raise UsageError(f"{name} {text!r}: is not a loss above 0, such as 0.01, or a share of the loss, such as 1%"
                             ) from None
        return cls(amount)

    def at(self, loss: float) -> float:
        return self.amount * abs(loss) if self.relative else self.amount

    def __str__(self) -> str:
        return f"{100 * self.amount:g}%" if self.relative else f"{self.amount:g}"


@dataclass(frozen=True)
class Options:
    """What the user can set of the analysis."""

    perfect_within: float = PERFECT_WITHIN
    useful_within: float = USEFUL_WITHIN
    confidence: float = CONFIDENCE
    loss_within: Tolerance = Tolerance.parse(LOSS_WITHIN)
    trials: int | None = None           # of each search, to compare batches at; None: those of the smallest search
    crossing: str = FIRST               # or LASTING: where a run meets its target, see steps.py
