"""What the shell completes behind an option or in place of an argument; click makes the scripts.

    @click.argument("logs", nargs=-1, shell_complete=paths)

Without these, click completes nothing in place of a text, not even the names of files.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.resources import files

from click.shell_completion import CompletionItem


def paths(ctx, param, incomplete: str) -> list[CompletionItem]:
    """Files and folders, by the shell's own rules."""
    return [CompletionItem(incomplete, type="file")]


def words(known: Iterable[str]) -> Callable[..., list[str]]:
    """The words that begin so."""
    def complete(ctx, param, incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]
    return complete


def workloads(ctx, param, incomplete: str) -> list[str]:
    """The built-in workloads, without those whose names have a number to fill in."""
    lines = files(__package__).joinpath("workloads.txt").read_text("utf-8").splitlines()
    names = [line.split()[0] for line in lines if "/" in line.partition(" ")[0]]
    return [name for name in names if name.startswith(incomplete) and "WIDTH" not in name]


def presets_or_paths(ctx, param, incomplete: str) -> list[CompletionItem]:
    """The presets that begin so; files where none does."""
    from ..plan.presets import names
    found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
    return found or paths(ctx, param, incomplete)
