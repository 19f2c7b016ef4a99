"""Help on one screen: the options that most people use; --help-all has every one."""
from __future__ import annotations

import click

ALL_OPTIONS = f"{__name__}.all_options"         # in a context: its help lists every option


def _help_all(ctx, _, asked):
    if asked:
        ctx.meta[ALL_OPTIONS] = True
        click.echo(ctx.get_help())
        ctx.exit()


class Brief(click.Command):
    """A click command of which --help lists the options in ``few``, in that order, and --help-all every one."""

    def __init__(self, *args, few: str = "", **attrs):
        super().__init__(*args, **attrs)
        self.few = few.split()
        if few:
            self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False,
                                            callback=_help_all, help="Show every option and exit."))

    def brief(self, ctx) -> bool:
        return bool(self.few) and ALL_OPTIONS not in ctx.meta

    def rows(self, ctx) -> dict[str, tuple[str, str]]:
        """What the help lists of each option, by the option's name."""
        options = {param.opts[-1]: param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        listed = [*self.few, "--version", "--help-all", "--help"] if self.brief(ctx) else options
        rows = {options[flag].name: options[flag].get_help_record(ctx) for flag in listed}
        return {name: row for name, row in rows.items() if row}

    def format_options(self, ctx, formatter):
        with formatter.section("Options"):
            formatter.write_dl(list(self.rows(ctx).values()))
