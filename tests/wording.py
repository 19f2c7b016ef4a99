"""The wording of a command is kept in one file of tests/golden, with all that it prints for small cases; any other test
looks for what a message must name: the key, the value met, the next move.

    tools/test --renew                  keeps the wording as it is now; git diff shows what that changed
"""
import re
import shlex
from functools import partial
from subprocess import CompletedProcess
from types import FunctionType

from click.testing import CliRunner

from hvdscale.errors import HvdscaleError


def naming(*parts):
    """A pattern of text that has each of the parts, in any order, for re.search and pytest.raises."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


def screens(name, command, lines):
    """What a command prints for each of the lines typed after its name, with the exit code where it is not 0.

    command     of click, or a function that runs the words and gives a finished process
    """
    run = command if isinstance(command, FunctionType) else partial(_invoke, command)
    return "\n".join(_screen(f"{name} {line}".rstrip(), run(*shlex.split(line))) for line in lines)


def _invoke(command, *words):
    done = CliRunner().invoke(command, words)
    if isinstance(done.exception, HvdscaleError):           # of a command that all ranks end together
        return CompletedProcess(words, done.exception.exit_code, "", f"Error: {done.exception}\n")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CompletedProcess(words, done.exit_code, done.output, "")


def _screen(typed, done):
    code = f"(exit code {done.returncode})\n" if done.returncode else ""
    return f"$ {typed}\n{done.stdout}{done.stderr}{code}"


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
