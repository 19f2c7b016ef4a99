"""What pages show of a section of trials for which there is no plan, and what it says in sentences."""
from hvdscale.report.document import Shown, sentences_of
from hvdscale.report.pages import MEASURED, show
from hvdscale.report.papers import figures
from hvdscale.report.subject import Subject
from hvdscale.report.views import trials


def shown(section):
    subject = Subject(**{name: value for name, value in vars(section).items() if name != "plan"})
    vars(subject)["plan"] = None
    return Shown(tuple(show(MEASURED, subject)))


def tables_of(section):
    return shown(section).tables


def figures_of(section):
    return shown(section).figures


def findings(section):
    return shown(section).findings


def summary(section):
    return (*sentences_of(findings(section)), *trials.schedules(section))


def left_out(section):
    return tuple(trials.left_out(section))


def beside_published(*given):
    return Shown(tuple(figures.beside_published(*given)))


def cells_of(table, key):
    """The cells of a column."""
    at = [column.key for column in table.columns].index(key)
    return [row.cells[at] for row in table.rows]
