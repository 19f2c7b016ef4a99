"""Chapters beside published results, and with the figures of a paper."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ...analysis.noise_against import best_known
from ...analysis.trials import JobKey
from ...target import Target
from ..document import Part
from ..subject import Subject, Whole
from .compare import beside_published
from .figures import figures, paper_of


def chapters(whole: Whole) -> Iterator[tuple[str, Iterable[Part], str]]:
    """The title and parts of each publication and paper that was asked for."""
    measured = [section.batches for section in whole.repeats if section.batches]
    noise = {workload: scale for workload, subject in whole.first.items() if (scale := _noise_scale(subject))}
    curves = [*(subject.curve for subject in whole.subjects), *measured]
    for name in whole.asked.compare:
        yield f"Beside published results: {name}", beside_published(curves, name, noise), ""
    if whole.asked.paper:
        yield f"The figures of {whole.asked.paper}", figures(whole.studies, paper=whole.asked.paper,
                                                             options=whole.options, tell=whole.tell), ""


def _noise_scale(subject: Subject) -> float | None:
    """The noise scale at the batch at which it is known best."""
    best = best_known([noise for _, noise in subject.section.noise if 0 < noise.whole.noise_scale < np.inf],
                      lambda noise: noise)
    return best.whole.noise_scale if best else None


def target_of(paper: str, workload: JobKey) -> tuple[Target, ...]:
    """The first target that a paper has for a workload; () where it has none."""
    names, sheets = paper_of(paper).names_of(workload), paper_of(paper).FIGURES
    lines = [line for sheet in sheets for panel in sheet.panels for line in panel.lines]
    found = [line.target for line in lines if line.workload in names]
    return tuple(map(Target.parse, found[:1]))
