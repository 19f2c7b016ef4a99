"""What a report assumes unless it is asked otherwise: for the commands, whose help need not import the analysis."""

from dataclasses import dataclass

from ..target import Tolerance

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


@dataclass(frozen=True)
class Options:
    """What the user can set of the analysis."""

    perfect_within: float = PERFECT_WITHIN
    useful_within: float = USEFUL_WITHIN
    confidence: float = CONFIDENCE
    loss_within: Tolerance = Tolerance.parse(LOSS_WITHIN)
    trials: int | None = None           # of each search, to compare batches at; None: those of the smallest search
    crossing: str = FIRST               # or LASTING: where a run meets its target, see steps.py
