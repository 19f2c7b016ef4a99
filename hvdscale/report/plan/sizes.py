"""A plan for a size that nobody has run: batch, rate, steps and workers from laws over smaller ones."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from ...analysis.grouping import group_by
from ...analysis.report_data import Contents, Options, analyse
from ...analysis.size.laws import QUANTITIES, SizeLaws
from ...analysis.size.sizes import REACH, WIDEST, Size, SizePrediction
from ...errors import LogError
from ...formatting.numbers import capital, number, whole
from ...target import Target
from ..document import Chapter, Document, Finding, Path, facts_of
from ..pages import open_logs
from ..output import give_out, head_of, refuse_no_folder
from ..views.size import describe_law, parts_of_laws
from ..table import Table, as_values, encode, interval_cell
from ..texts import PLAN

BATCHES = ("overhead", "best_batch")        # the first that is predicted gives the workers
WRITE = {"best_rate": number}               # others are whole numbers
Predictions = Mapping[str, SizePrediction]


def make_size_plan(paths: Iterable[Path], targets: Sequence[Target], wanted: Mapping[str, float],
                   sizes: Sequence[Size], *, options: Options = Options(), local_batch: int | None = None,
                   skip_broken: bool = False, out: Path | None = None, formats: Sequence[str] = (),
                   whole: bool = False,
                   echo: Callable[[str], object] = print) -> Predictions:
    """Print what laws over the logs' sizes predict at another size, and write it under ``out`` where that is given.

    wanted       the size to plan for, by name; sizes: where the logs' own sizes of these names come from
    local_batch  examples a worker; None: the most in the logs
    Raises UsageError or LogError, with what would help, where there is no law.
    """
    refuse_no_folder(out)
    with ExitStack() as opened:
        opened_logs, skipped = open_logs(list(paths), skip_broken, opened)
        contents = Contents(opened_logs)
        most = max((int(np.max(log.trials["local_batch"])) for log in opened_logs if log.trials.rows), default=0)
        found = SizeLaws(analyse(contents.trials, targets, options), contents.studies, sizes, options=options)
        logs = tuple(map(facts_of, opened_logs))
    known = {key: law for key, law in found.quantities.items() if law.exponents}
    if not known:
        why = [describe_law(key, law).said for key, law in found.quantities.items()]
        raise LogError(" ".join(why) or PLAN.say("size_none", sizes=list(wanted)))
    predictions = {key: law.predict(wanted) for key, law in known.items()}
    table = prediction_table(predictions, local_batch or most, options.confidence)
    laws, law = parts_of_laws(found), next(iter(known.values()))
    far = max(one.extrapolated for one in predictions.values())
    end = "largest" if any(value > law.measured(name).max() for name, value in wanted.items()) else "smallest"
    reasons = group_by(((key, one) for key, one in predictions.items() if one.refused), lambda row: PLAN.say(
        f"size_{row[1].refused}", times=row[1].extrapolated, reach=REACH, widest=WIDEST))
    said = [PLAN.say("size_reach", inside=far <= 1, times=far, end=end), *(
        PLAN.say("size_refused", quantities=[QUANTITIES[key][0] for key, _ in refused], why=why)
        for why, refused in reasons.items())]
    chapter = Chapter((*map(Finding, said), table, *(one for one in laws if not isinstance(one, Finding))), slug="plan",
                      title=", ".join(f"{name} {number(value)}" for name, value in wanted.items()))

    def values() -> dict[str, object]:
        return {**head_of("plan"), "predictions": [
            {"quantity": key, "sizes": dict(one.sizes), "beyond": dict(one.beyond), "refused": one.refused,
             **encode(one.estimate)} for key, one in predictions.items()],
            "tables": [as_values(one) for one in (*chapter.tables, *chapter.details)]}
    give_out(Document((), logs, tuple(skipped), options.confidence, (chapter,), contents.notes, "plan", values=values),
             out, formats, echo, whole)
    return predictions


def prediction_table(predictions: Predictions, local_batch: int, confidence: float) -> Table:
    rows = [(capital(QUANTITIES[key][0]), interval_cell(one.estimate, WRITE.get(key, whole)),
             "refused" if one.refused else "measured range" if one.extrapolated <= 1 else
             f"{number(one.extrapolated, 2)} x beyond") for key, one in predictions.items()]
    batch = next((predictions[key].estimate for key in BATCHES
                  if key in predictions and not predictions[key].refused), None)
    if batch is not None and local_batch:
        held = batch.mapped(lambda one: one if math.isnan(one) else max(1.0, float(-(-one // local_batch))))
        rows.append(("Workers for that batch", interval_cell(held, whole),
                     f"at {local_batch:,} examples each"))
    notes = (PLAN.say("size_intervals", confidence=confidence),)
    return PLAN.table("size-prediction", rows, notes=notes, cells={
        "quantity": lambda row: row[0], PLAN.column("predicted", "value"): lambda row: row[1],
        "basis": lambda row: row[2]})
