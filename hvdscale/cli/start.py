"""Entry points of the commands: Ctrl-C ends a command quietly during imports, and --version needs no import."""

import gc
import sys
from importlib import import_module
from signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal

from ..errors import ExitCode, OutputError, SignalEnd
from ..system.hangup import guard_streams


def _command(name):
    def start():
        ignored = getsignal(SIGINT) is not default_int_handler      # as for background jobs of a shell
        if not ignored:
            signal(SIGINT, SIG_DFL)
        guard_streams()
        try:
            if sys.argv[1:2] == ["--version"]:
                from ..system.version import version_line
                return print(version_line(), flush=True)
            gc.disable()            # whose passes take a quarter of the time of imports
            main = import_module(f"hvdscale.cli.{name}").main
            gc.freeze()
            gc.enable()
            if not ignored:
                signal(SIGINT, default_int_handler)
            try:
                return main()
            finally:
                sys.stdout.flush()          # of --help, too
        except OutputError as error:
            print(f"Error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            sys.exit(ExitCode.BROKEN_PIPE)
        except SignalEnd as ended:
            sys.exit(128 + ended.args[0])
    return start


train, scale, tune, branch, doctor, report, plan, log, data = map(_command, (
    "train", "scale", "tune", "branch", "doctor", "report", "plan", "log", "data"))
