"""How commands end: errors as one message on stderr, without a traceback, and the exit code they stand for.

hvdscale-train, which ends on many ranks at once, has its own way.

    @click.command(cls=Command)          or          @click.group(cls=Group)
"""
from __future__ import annotations

import os
import sys

import click

from ..errors import HvdscaleError

INTERRUPTED, BROKEN_PIPE = 130, 141      # as a shell reports SIGINT and SIGPIPE


class _Ending:
    """Mixin of click commands: HvdscaleError -> its exit code, Ctrl-C -> 130, a reader of stdout that left -> 141."""

    def invoke(self, ctx):
        """Runs the command; the outermost one turns errors into exit codes."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except HvdscaleError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)      # so that the last flush at exit is silent, too
            ctx.exit(BROKEN_PIPE)


class Command(_Ending, click.Command):
    """A click command that ends as described above."""


class Group(_Ending, click.Group):
    """A click group whose commands end as described above."""
