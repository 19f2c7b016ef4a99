"""The wording of a command is kept in one file of tests/golden, with all that it prints for small cases; any other test
looks for what a message must name: the key, the value met, the next move.

    tools/test --renew                  keeps the wording as it is now; git diff shows what that changed
"""
import re
import shlex

from click.testing import CliRunner


def naming(*parts):
    """A pattern of text that has each of the parts, in any order, for re.search and pytest.raises."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


def screens(name, command, lines):
    """What a command prints for each of the lines typed after its name, with the exit code where it is not 0."""
    return "\n".join(_screen(f"{name} {line}".rstrip(), CliRunner().invoke(command, shlex.split(line)))
                     for line in lines)


def _screen(typed, done):
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    code = f"(exit code {done.exit_code})\n" if done.exit_code else ""
    return f"$ {typed}\n{done.output}{code}"


def refusals(error, act, cases):
    """What is said of each case: a dictionary of keys that ``act`` refuses with that kind of error."""
    said = []
    for case in cases:
        try:
            act(**case)
        except error as refused:
            said.append(f"{' '.join(f'{name}={value!r}' for name, value in case.items())}\n    {refused}\n")
        else:
            raise AssertionError(f"{case} was not refused")
    return "\n".join(said)
