"""What a report assumes unless it is asked otherwise, for the commands, whose help need not import the analysis."""
from __future__ import annotations

CONFIDENCE = 0.95
PERFECT_WITHIN = 0.25       # B S may be this share above the smallest B S
LOSS_WITHIN = "1%"          # a batch does as well as the best one where its loss is this much above
USEFUL_WITHIN = 0.20        # S may be this share above the fewest steps
RULES = ("linear", "sqrt", "none", "linear<=8", "adam_sqrt")
RULE_WITHIN = 0.20          # a rule loses where it needs this share more steps than the tuned optimum
FIRST, LASTING = CROSSINGS = ("first", "lasting")       # where a run meets its target, see crossing.py
