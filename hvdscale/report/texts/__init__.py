"""The sentences of a report, kept as text: a TOML file a subject, whose templates are filled in with values.

    SCALING = Texts("scaling")
    SCALING.say("perfect", batch=128)                       # the sentence
    SCALING.find("speedup", ratio, first=1, last=8)         # a Finding, which has the values, too

formatting/numbers.py says how they are written.
"""

import importlib.resources
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...formatting.numbers import fill
from ...plan.settings import read_toml
from ...target import Target
from ..document import Finding
from ..drawing import Figure
from ..table import NO_INTERVAL, WIDE, Cell, Column, Row, Table, TrialKeys, cell_of

SOURCES = {                 # that any template may name
    "SHALLUE": "Shallue et al. 2019, arXiv 1811.03600", "POLLUX": "Qiao et al. 2021, arXiv 2008.12260",
    "MCCANDLISH": "McCandlish et al. 2018, arXiv 1812.06162, appendix A.1",
    "MERRILL": "Merrill et al. 2025, arXiv 2505.23971"}
OfRow = Callable[[Any], TrialKeys]
Cells = dict[Column | str, Callable[[Any], Any]]        # what each column of a table shows of its row: see cell_of


@dataclass(frozen=True)
class Texts:
    """The texts of one subject. Sections: ``finding``, ``warning`` and ``note``, a template a kind; ``table``: titles
    by name; ``figure``: title, caption, formula and source by kind; ``column``: by key what table.Column has, ``spare``
    where its template is not empty; ``words``: by name words that are no template, by key."""

    subject: str

    @cached_property
    def sections(self) -> dict[str, dict[str, Any]]:
        with importlib.resources.as_file(importlib.resources.files(__package__) / f"{self.subject}.toml") as path:
            return read_toml(str(path))

    def say(self, kind: str, /, **values: Any) -> str:
        return self.find(kind, **values).said

    def say_if(self, kind: str, condition: object, /, **values: Any) -> str:
        """The sentence under a condition; else "", which tables leave out."""
        return self.say(kind, **values) if condition else ""

    def find(self, kind: str, estimate: object = None, more: Sequence[str] = (), /, **values: Any) -> Finding:
        """A finding; ``estimate`` is the number that it is about, and more: further sentences on the same."""
        if estimate is not None:
            values = {"estimate": estimate, **values}
        severity = next(name for name in ("finding", "warning", "note") if kind in self.sections.get(name, ()))
        return Finding(fill(self.sections[severity][kind], SOURCES | values), tuple(filter(None, more)), estimate, kind,
                       values, severity)

    def words(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.sections["words"][name]
        return found

    def column(self, key: str, name: str = "", /, **values: Any) -> Column:
        """A column of a table, its own or one that all share; without texts its title is its key.

        name    its key in files where that is another one
        """
        texts = {**GENERAL.sections["column"], **self.sections.get("column", {})}.get(key, {})
        found: dict[str, Any] = {part: fill(text, SOURCES | values) for part, text in texts.items()}
        return Column(name or key, **{"title": key.replace("_", " "), **found, "spare": bool(found.get("spare"))})

    def table(self, name: str, rows: Iterable[Any], cells: Mapping[Column | str, Callable[[Any], Any]],
              trials: OfRow = lambda _: (), *, diverged: OfRow = lambda _: (), baseline: OfRow = lambda _: (),
              file: str = "", notes: Iterable[str] = (), warnings: Iterable[str] = (), target: Target | None = None,
              **values: Any) -> Table:
        """A table of a title by name, a row for each of ``rows``, whose trials, diverged and baseline table.Row has.

    cells   see Cells; a column by its key has its words here
    file    its name in files, where that differs; notes, warnings (empty: none) and target: see Table
    """
        values = {"target": target, **values}
        columns = tuple(self.column(key, **values) if isinstance(key, str) else key for key in cells)
        found = tuple(Row(tuple(cell_of(show(row)) for show in cells.values()), trials(row), diverged(row),
                          baseline(row)) for row in rows)
        wide = WIDE if any(cell.below == NO_INTERVAL for row in found for cell in row.cells) else ""
        return Table(file or name, fill(self.sections["table"][name], SOURCES | values), columns, found,
                     tuple(filter(None, notes)), target, tuple(filter(None, (*warnings, wide))))

    def figure(self, name: str, draw: Callable[..., None], trials: TrialKeys, panels: int = 1, /,
               **values: Any) -> Figure:
        words = {part: fill(text, SOURCES | values) for part, text in self.sections["figure"][name].items()}
        return Figure(values.get("name", name), words["title"], words["caption"], words["formula"],
                      words.get("source", ""), trials, draw, panels)


def power_cell(one: Any) -> Cell:
    """``0.47``, its interval under it."""
    return Cell(f"{one.value:.2f}", one.value, one.low, one.high, f"{one.low:.2f} to {one.high:.2f}")


SCALING = Texts("scaling")
SEARCH = Texts("search")
PLAN = Texts("plan")
GENERAL = Texts("general")
LOCAL_STEPS = Texts("local_steps")
LANDSCAPES = Texts("landscapes")
BRANCHES = Texts("branches")
SIZE = Texts("size")
COMPARE = Texts("compare")
PAPERS = Texts("papers")
