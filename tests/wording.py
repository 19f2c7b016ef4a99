"""The wording of a command is kept in one file of tests/golden, with all that it prints for small cases; any other test
looks for what a message must name: the key, the value met, the next move.

    tools/test --renew                  keeps the wording as it is now; git diff shows what that changed

The cases stand in these files, too: what is typed, or called.
"""
import re
from textwrap import indent

from tests.conftest import GOLDEN


def naming(*parts):
    """A pattern of text that has each of the parts, in any order, for re.search and pytest.raises."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


def refusals(name, error, names):
    """What is said of each call that tests/golden/NAME.txt has, which is refused with that kind of error.

    names       those that the calls use
    """
    def refusal(call):
        try:
            eval(call, names)
        except error as refused:
            return f"{type(refused).__name__}: {refused}"
        raise AssertionError(f"{call} was not refused")
    return answered(name, refusal)


def answered(name, answer):
    """The text that tests/golden/NAME.txt should have: below each line that is not indented what ``answer`` makes of
    it. Comments stay; a further line there is a further case."""
    said = []
    for line in (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(" "):
            said += [line] if line.startswith("#") else [line, indent(answer(line), "    ")]
            said.append("")
    return "\n".join(said)
