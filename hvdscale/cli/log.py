"""hvdscale-log: list, show, check, merge and repair logs; import and export results."""

import click

from .common import CONTEXT, CommandGroup, command_at, slow_imports, version_option

# place and first line of the help of each command; the modules take a third of a second to import
COMMANDS = {
    "check": ("log_files:check", "Verify that logs keep every rule, and name the first one broken."),
    "export": ("exchange:export_log", "Export LOG to the new FOLDER in a format that other programs read."),
    "import": ("exchange:import_log", "Import RUNS, files or folders, into the new log LOG."),
    "ls": ("log_files:list_logs", "List the trials of LOGS, one line each."),
    "merge": ("log_files:merge", "Copy the trials of several logs into one file."),
    "repair": ("log_files:repair", "Replace an interrupted or damaged log by what can be saved."),
    "show": ("log_files:show", "Show a log: the run, its restarts and evaluations, and why it ended.")}


class LogGroup(CommandGroup):
    """A group that imports the command it is given, and none for its help."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        with slow_imports():
            return command_at(COMMANDS[name][0]) if name in COMMANDS else None

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in COMMANDS.items()])


@click.group(cls=LogGroup, context_settings=CONTEXT)
@version_option
def main():
    """List, show, check, merge and repair hvdscale's logs; import others' results, export logs.

    A log may be closed, being written, or left by a killed process; its files are read as one. A folder means all logs
    in it.
    """


if __name__ == "__main__":
    main()
