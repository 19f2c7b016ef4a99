"""What commands share: how they end, their help on one screen, what the shell completes, and options.

    @click.command(cls=Command)          or          @click.group(cls=CommandGroup)
    @click.argument("logs", nargs=-1, shell_complete=paths)         without it, click completes not even names of files
"""

import contextlib
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from ..analysis.defaults import ALIKE_WITHIN, CONFIDENCE
from ..errors import ExitCode, HvdscaleError, OutputError, SignalEnd, UsageError, WorkersError
from ..formatting.numbers import counted
from ..formatting.screen import NARROWEST, USUAL, WIDEST, say as echo, terminal_width
from ..report import FORMATS
from ..system.files import clear_own
from ..system.hangup import end_at_signals, guard_streams, heed, stop_before_the_steps
from ..workers import orphans  # noqa: F401  it notes who launched this process, which may soon end
from ..workers.launch import launched

LONGEST = 1000          # letters of an error's line; a value from a file may have millions
ALL_OPTIONS = f"{__name__}.all_options"         # in a context: its help lists every option
# context_settings of every command; without a terminal click's own width would be 80
CONTEXT = dict(help_option_names=["-h", "--help"], max_content_width=110,
               terminal_width=None if terminal_width() else USUAL)


class _Ending:
    """Mixin of click commands, the outermost of which turns errors into one message on stderr and an exit code, that of
    an HvdscaleError, 130 of Ctrl-C, 141 where the reader of stdout left, 143 of TERM and 129 of HUP, with nothing left
    behind."""

    def invoke(self, ctx):
        if ctx.command is not self:             # one that the first argument selected
            return ctx.command.invoke(ctx)
        guard_streams()
        end_at_signals()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except SignalEnd as ended:
            clear_own()
            exit_now(128 + ended.args[0])           # HDF5 may have been interrupted in the middle of a file
        except HvdscaleError as error:
            say_error(error)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            ctx.exit(ExitCode.BROKEN_PIPE)


class Brief(click.Command):
    """A click command of which --help lists the options in ``few``, in that order, and --help-all every one."""

    def __init__(self, *args, few: str = "", **attrs):
        super().__init__(*args, **attrs)
        self.few = few.split()
        if few:
            self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                                            callback=self.help_all, help="Show every option and exit."))

    def help_all(self, ctx, _, asked):
        if asked:
            ctx.meta[ALL_OPTIONS] = True
            click.echo(ctx.get_help())
            ctx.exit()

    def brief(self, ctx) -> bool:
        return bool(self.few) and ALL_OPTIONS not in ctx.meta

    def rows(self, ctx) -> dict[str, tuple[str, str]]:
        options = {param.opts[-1]: param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        listed = [*self.few, "--version", "--help-all", "--help"] if self.brief(ctx) else options
        rows = {options[flag].name: options[flag].get_help_record(ctx) for flag in listed}
        return {name: row for name, row in rows.items() if row}

    def format_options(self, ctx, formatter):
        with formatter.section("Options"):
            formatter.write_dl(list(self.rows(ctx).values()))


class Command(_Ending, Brief):
    """A click command that ends as described above; its first argument may select another one: of ``words``, each
    ``module:command``."""

    def __init__(self, *args, words: Mapping[str, str] = {}, **attrs):
        super().__init__(*args, **attrs)
        self.words = words

    def make_context(self, info_name, args, parent=None, **extra):
        if not args or args[0] not in self.words:   # a file of that name is ./WORD
            return super().make_context(info_name, args, parent, **extra)
        return command_at(self.words[args[0]]).make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


def command_at(place: str) -> click.Command:
    """The command of ``module:name`` of this package, imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


class CommandGroup(_Ending, click.Group):
    """A click group whose commands end as described above."""


def paths(ctx, param, incomplete: str) -> list[CompletionItem]:
    """Files and folders, by the shell's own rules."""
    return [CompletionItem(incomplete, type="file")]


def words(known: Iterable[str]) -> Callable[..., list[str]]:
    return lambda ctx, param, incomplete: [word for word in known if word.startswith(incomplete)]


def _print_version(ctx, _, asked):
    if asked:
        from ..system.version import version_line   # it imports what no other command needs
        echo(version_line())
        ctx.exit()


# of every command; as the first argument, cli.start answers it before importing the command
version_option = click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
                              help="Print the versions of hvdscale, Horovod, MPI and torch, and stop.")


def _set_width(ctx, _, columns):
    if columns is not None:
        os.environ["COLUMNS"] = str(columns)            # read by formatting.screen, and by click for its own messages
        ctx.terminal_width = None


width_option = click.option("--width", type=click.IntRange(NARROWEST, WIDEST), is_eager=True, expose_value=False,
                            callback=_set_width, metavar="COLUMNS", help="Width of what is printed.  [default: the "
                            f"terminal's, or {USUAL}]")


def general_options(command):
    """--width and --version, which come last."""
    return width_option(version_option(command))


full_option = click.option("--full", is_flag=True, help="Print every table, and how to read them.")
confidence_option = click.option("--confidence", type=float, default=CONFIDENCE, show_default=True,
                                 help="Confidence level of the intervals.")
within_option = click.option("--within", default=ALIKE_WITHIN, show_default=True, metavar="SHARE",
                             help="With --decide: how much more or less still is alike.")
ledger_option = click.option("--ledger", metavar="FILE", help="With --decide: the chance of "
                             "error is of all comparisons with this baseline, which the file counts.")
formats_option = click.option("--format", "formats", metavar="LIST", default=",".join(FORMATS), show_default=True,
                              help="What to write, of these.")
take_over_option = click.option("--take-over", is_flag=True, help="write even where the file system refuses locks")
hosts_option = click.option("--hosts", metavar="A:4,B:4", help="hosts and their workers  [default: this machine]")
rerun_option = click.option("--overwrite", is_flag=True, help="run everything again and replace the logs")

# of hvdscale-doctor, for a job and for a script
format_option = click.option("--format", "wanted", type=click.Choice(["text", "json", "junit"]), default="text",
                             show_default=True, help="What to print on stdout: the report, or its findings as JSON or "
                             "as JUnit's XML.")
checks_option = click.option("--checks", metavar="LIST", help="Only these findings, such as 'examples,batch-norm', "
                             "by the names that the report has; the exit code follows from them.")


def parse(command: click.Command):
    """The parsed command line, and its error, which all ranks then raise together; ends where it asked for help."""
    guard_streams()
    try:
        parsed = command.main(standalone_mode=False)
        sys.stdout.flush()
        if isinstance(parsed, int):         # an exit code
            sys.exit(parsed)
        return parsed, None
    except OutputError:
        raise
    except click.ClickException as raised:
        return None, UsageError(raised.format_message())
    except HvdscaleError as raised:
        return None, raised
    except click.Abort:                 # what click makes of Ctrl-C
        exit_now(ExitCode.INTERRUPTED)
    finally:
        guard_streams(lasting=True)


@contextlib.contextmanager
def slow_imports() -> Iterator[None]:
    """Imports of modules that stay; raises WorkersError where a package of training is missing. Ctrl-C ends the process
    at once: it would print a traceback, or be dropped."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
    gc.disable()                # whose passes take a quarter of the time of imports
    try:
        yield
        gc.freeze()
    except ModuleNotFoundError as missing:
        raise WorkersError(f"training needs {missing.name}, which is not installed; it comes with "
                           "pip install 'hvdscale[torch]', in a checkout '.[torch]'") from None
    finally:
        gc.enable()
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def formats_of(text: str) -> tuple[str, ...]:
    formats = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not formats or not set(formats) <= set(FORMATS):
        raise UsageError(f"--format {text!r}: choose from {', '.join(FORMATS)}, with commas between")
    return formats


def whole_numbers(option: str, text: str, what: str = "whole numbers", least: int = 0) -> list[int]:
    """The numbers of ``1,2,4``, in their order; raises UsageError for what is none, or less than ``least``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise UsageError(f"{option} {text!r} is not a list of {what} such as 1,2,4,8")
    return [int(word) for word in words]


def format_counts(rows: Mapping[str, int]) -> str:
    """Numbers of rows by table: ``2 trials, 1 restart, 1,240 steps``."""
    return ", ".join(counted(number, name.removesuffix("s")) for name, number in rows.items())


def say_error(error: HvdscaleError) -> None:
    echo("\n".join(line if len(line) <= LONGEST else f"{line[:LONGEST // 2]} ... {line[-LONGEST // 2:]}"
                   for line in f"Error: {error}".split("\n")), err=True)


def begin_run() -> None:
    """At the start of a training command: signals and the end of its terminal stop it, and lose nothing."""
    if launched() is not None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)        # torchrun's, as it ends, also under nohup
    heed(stop_before_the_steps, but_for=(signal.SIGINT,))


def exit_now(code: int) -> None:
    """End without Python's own exit: HDF5 would try to write what a full disk refused, and crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    if "multiprocessing.forkserver" in sys.modules:         # the folder of its socket goes at Python's own exit
        shutil.rmtree(sys.modules["multiprocessing.util"].get_temp_dir(), ignore_errors=True)
    os._exit(code)
