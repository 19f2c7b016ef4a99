"""A training script that is right when it is stopped and started again; others that are so in another way, and the
same with a fault planted: the pairs of resume_pairs.toml."""
import re
from pathlib import Path

from hvdscale.plan.settings import tomllib

PAIRS = tomllib.loads(Path(__file__).with_name("resume_pairs.toml").read_text())
SHARED = PAIRS.pop("shared")
RIGHT = PAIRS.pop("whole")["right"]


def changed(text, changes):
    """The text with lines (+) in place of others (-)."""
    for change in re.findall(r"(?:^-.*\n)+(?:^\+.*\n)*", changes, re.M):
        old, new = ("".join(line[1:] for line in change.splitlines(True) if line[0] == sign) for sign in "-+")
        assert text.count(f"\n{old}") == 1, old
        text = text.replace(f"\n{old}", f"\n{new}")
    return text


def script(name):
    """The text of the script of that name: of a pair the faulty one, and the right one with ``right_`` before it."""
    pair = PAIRS.get(name.removeprefix("right_"), {})
    text = changed(RIGHT, "".join(SHARED[one] for one in pair.get("shared", ())))
    text = changed(text, pair.get("right", ""))
    return (text if name.startswith("right") else changed(text, pair["fault"])).lstrip()
