"""What is said of keys that cannot hold, word by word, as tests/golden/keys.txt keeps it with the calls."""
import math

from hvdscale.errors import UsageError
from hvdscale.plan.settings import check, parse_assignments
from tests.factories.plans import settled
from tests.wording import refusals

NAMES = {"settled": settled, "check": check, "parse_assignments": parse_assignments, "nan": math.nan, "inf": math.inf}


def test_keys_that_cannot_hold_are_refused_in_the_same_words(golden):
    golden("keys", refusals("keys", UsageError, NAMES))
