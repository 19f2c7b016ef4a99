"""What pages show of a section of trials for which there is no plan, and what it says in sentences."""
from hvdscale.report.document import sentences_of
from hvdscale.report.pages import measured
from hvdscale.report.subject import Subject
from hvdscale.report.views.trials import schedules


def shown(section):
    subject = Subject(section)
    vars(subject)["plan"] = None
    return measured(subject)


def tables_of(section):
    return shown(section).tables


def figures_of(section):
    return shown(section).figures


def findings(section):
    return shown(section).findings


def summary(section):
    return (*sentences_of(findings(section)), *schedules(section))
