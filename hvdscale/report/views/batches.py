"""By global batch: regimes, the fit, the crossing that lasts, and the noise scale beside the critical batch, in tables,
findings and figures."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from ...analysis.critical_batch_fit import CriticalBatchFit
from ...analysis.curves import BatchEstimate, Curve, CurvePoint, Regimes
from ...analysis.defaults import FIRST, RUN_DEVIATION
from ...analysis.intervals import Estimate, geometric_mean, over
from ...analysis.noise import LEAST_STEPS, Noise, NoiseAgainst, NoiseScale, best_known
from ...analysis.steps import Crossing, RunCell, crossing_of
from ...analysis.studies import best_value
from ...formatting.numbers import counted, exact, listed, number, ratio, span, spread, whole
from ...target import Target
from ..document import Details, Figures, Finding, Part
from ..drawing import (BLUE, MUTED, Axes, draw_line, ends_of, is_named, is_positive, label_axes, log2_axis,
                       mark_estimate, shade)
from ..subject import Subject
from ..table import Cell, Table, TrialKeys, Write, as_shown, keys_of, known_cell, no_cell, steps_cell
from ..texts import SCALING, SEARCH, Cells, Texts
from .cells import table_of_cells
from .curves import mark_regimes, workload_figures
from .trials import training

LACKING = 0.05          # p-value of the lack-of-fit test from which on down it is said
NEVER = "never measured"
UNBOUNDED = "?"     # a noise scale whose |G|^2 came out as 0 or less
ENDED, LATER, CHANCE = 4, 1.1, 4.0      # runs, times the steps, deviations: see early_crossing


def curve(subject: Subject) -> Iterator[Part]:
    """Regimes and steps by batch of studies; searches that hvdscale ran have words and a table of their own."""
    found = subject.curve
    if not subject.searches:
        yield from curve_findings(found)
        yield curve_table(found)
    yield Details(lambda: [fit_table(found.regimes.fit, found.target, found.keys)])
    yield Figures(lambda: workload_figures([found, *map(subject.curve_to, subject.others if subject.first else ())],
                                           subject.asked, subject.first, subject.asked.budgets))


def fitted(subject: Subject) -> Iterator[Part]:
    fit = subject.batches.regimes.fit if subject.batches else None
    yield Details(lambda: [fit_table(fit, subject.target, keys_of(subject.cells))])


def steps_by_batch(subject: Subject) -> Iterator[Part]:
    """The figure; where nothing met, training curves, and the strictest target of two digits that every run met, or the
    best of a search."""
    target, curve, cells = subject.target, subject.batches, [cell for cell in subject.cells if cell.runs]
    run = [cell for cell in curve.cells if cell.runs] if curve else []
    if curve and len(run) > 1 and any(cell.steps.met for cell in run):
        yield Figures(lambda: [SCALING.figure("steps-batch", partial(_draw_repeats, curve, run), keys_of(run),
                                              target=target, confidence=subject.options.confidence)])
    elif len(run) > 1:              # whose figure would be empty
        yield Figures(partial(training, subject))
    if target and cells and not any(cell.met for cell in cells):
        sign = 1 if target.minimizes else -1
        found = [[sign * best_value(run.trial.metrics[target.column], target.minimizes) for run in cell.runs]
                 for cell in cells]
        worst = max((min if cell.searched else max)(best) for cell, best in zip(cells, found))
        if worst and np.isfinite(worst):
            digit = 10.0 ** (math.floor(math.log10(abs(worst))) - 1)
            value = sign * digit * (math.floor(worst / digit) + 1)
            yield SCALING.find("could_meet", target=target, best=sign * min(map(min, found)),
                               looser=f"{target.column}{target.comparison[0]}{value:.2g}")


def regimes(subject: Subject) -> Iterator[Finding]:
    if subject.batches:
        yield from curve_findings(subject.batches)


def curve_findings(curve: Curve) -> Iterator[Finding]:
    """Where a search is cut off, the regimes of the batches that are not, and at how many trials batches are compared,
    where their counts differ; which were left out, or extrapolated."""
    if curve.cut:
        yield SCALING.find("cut", none=not curve.whole, **{"until": None, "start": None, **curve.cut})
    for at, point in enumerate(curve.judged):
        if all(point.steps.low > min((one.steps.high for one in others), default=np.inf)
               for others in (curve.judged[:at], curve.judged[at + 1:])):
            yield SCALING.find("more_than_both", batch=point.global_batch, steps=point.steps.value)
    yield from find_regimes(curve.regimes, [point.global_batch for point in curve.judged],
                            [point.steps for point in curve.judged], [point.met > 0 for point in curve.judged])
    counts = {point.global_batch: point.trials for point in curve.points if point.trials}
    most = max(counts.values(), default=0)
    if curve.n is not None and most > curve.n:
        fewest = [] if curve.left_out else [batch for batch, count in counts.items() if count == curve.n]
        yield SCALING.find("trials", n=curve.n, fewest=fewest, counts=spread(counts.values()))
        if fewest and curve.n < most / 2:
            yield SCALING.find("trials_option")
    if curve.left_out:
        named = [f"{batch:,} ({counted(count, 'trial')})" for batch, count in curve.left_out]
        yield SCALING.find("too_few_trials", n=curve.n, batches=named)
    if extrapolated := [point.global_batch for point in curve.points if point.steps.extrapolated]:
        yield SCALING.find("extrapolated", n=curve.n, batches=extrapolated)


def find_regimes(regimes: Regimes, batches: Sequence[int], estimates: Sequence[Estimate],
                 any_met: Sequence[bool], texts: Texts = SCALING, **whose: str) -> Iterator[Finding]:
    """The regimes at these batches, smallest first; any_met: whether some run of a batch met the target, though its
    estimate may not. Other texts name another axis in place of the batch, and ``whose`` they are."""
    if untrained := [batch for batch, one in zip(batches, estimates) if one.value == 0]:
        yield texts.find("at_once", batches=untrained, **whose)
        return
    until, useful = regimes.perfect_until.value, regimes.maximum_useful.value
    if until is None or useful is None or len(batches) < 2:
        return
    met = [(batch, one, inside) for batch, one, inside in zip(batches, estimates, regimes.perfect) if one.met]
    if len(met) == 1 and until != batches[0]:
        yield texts.find("met_alone", batch=until, **whose)
        return
    smallest = min((batch * one.value, batch * one.high) for batch, one, _ in met)
    most, limit = ((1 + regimes.options.perfect_within) * examples for examples in smallest)
    # outside perfect scaling, of one run each, whose evaluation before, that did not meet, lies inside: intervals over
    # repeats have that spread, too
    coarse = [batch for batch, one, _ in met
              if one.runs < 2 and batch > until and batch * one.before < most < batch * one.value]
    before = [(batch, batch * one.low <= limit) for batch, one, inside in zip(batches, estimates, regimes.perfect)
              if batch < until and not inside and (one.met or batch * one.beyond > limit)]  # whether its interval is in
    again = [batch for batch, _, inside in met if batch > until and inside]
    but = [texts.say(kind, batches=found, within=within) for kind, within, found in (
        *(("outside_before", way, [batch for batch, within in before if within == way]) for way in (False, True)),
        ("inside_again", None, again), ("coarse", None, coarse)) if found]
    alone = all(one.runs < 2 for _, one, _ in met)
    least, up_to = _allowed_examples(met, until) if alone and until > met[0][0] else (1.0, 1.0)
    unsure = up_to > 1 + regimes.options.perfect_within
    known = [batch * (one.value if one.met else one.beyond) > most for batch, one in zip(batches, estimates)
             if batch > until]
    yield texts.find(
        "perfect", regimes.perfect_until, batch=describe_batch(regimes.perfect_until), none=until == batches[0],
        open=until == batches[0] and (regimes.perfect_until.high > until and not again or not any(known)),
        all=regimes.perfect_until.largest, more=met[-1][0] > until, but="; ".join(but), alone=alone and RUN_DEVIATION,
        **whose, **({"least": least, "most": up_to if up_to < math.inf else None} if unsure else {}))
    at = list(batches).index(useful)
    fewest, where = min((one.value, batch) for batch, one, _ in met)
    may_fall = any(not one.met and not one.beyond >= fewest for one in estimates[at + 1:])
    falling = any((1 + regimes.options.useful_within) * fewest >= one.value for one in estimates[:at] if one.met)
    yield texts.find("useful", regimes.maximum_useful, **whose, batch=describe_batch(regimes.maximum_useful),
                     falling=falling, first=where == useful, fewest=fewest, where=where, steps=estimates[at].value,
                     within=regimes.options.useful_within, last=regimes.maximum_useful.largest,
                     least=regimes.maximum_useful.largest or may_fall and regimes.maximum_useful.high < math.inf,
                     none_fewer=any(one.met for one in estimates[at + 1:]), larger=list(batches[at + 1:]),
                     some=any(any_met[at + 1:]), coarse=not {*coarse}.isdisjoint(batches[at + 1:]),
                     **({"chance": True} if min(regimes.maximum_useful.high, batches[-1]) > useful else {}))
    yield from find_fit(regimes.fit, texts, **whose)


def _allowed_examples(met: Sequence[tuple[int, Estimate, bool]], until: int) -> tuple[float, float]:
    """How many times the fewest examples of the others a batch may need, by the evaluations around each crossing."""
    ends = {batch: (batch * float(np.nan_to_num(one.before)), batch * one.value) for batch, one, _ in met}
    (least, most), (low, high) = ends.pop(until), map(min, zip(*ends.values()))
    return max(1.0, least / high), most / low if low else math.inf


def describe_batch(found: BatchEstimate) -> str:
    """``128 (64-256)``, ``128 (at least 64)``, ``128 (no other of those run)``; ``128``: of unknown spread, or known to
    be at least that."""
    known = not math.isnan(found.low) and not (found.largest and found.low == found.value)
    return SCALING.say("batch", batch=found.value, unknown=not known, least=f"{found.low:,.0f}",
                       open=math.isinf(found.high), alone=found.low == found.high, most=f"{found.high:,.0f}")


def find_fit(fit: CriticalBatchFit | None, texts: Texts = SCALING, **whose: str) -> Iterator[Finding]:
    """The critical batch and S_min as far as the points bound them, shape, lack of fit, and batches left out."""
    if fit is None:
        return
    b_crit, low, high, shape = fit.b_crit, fit.b_crit.low, fit.b_crit.high, fit.shape
    rising = [texts.say("rising", batches=list(fit.left_out))] if fit.left_out else []
    if low == 0 and math.isinf(high):
        if rising:
            yield texts.find("rising", b_crit, **whose, batches=list(fit.left_out))
    elif math.isinf(high):
        yield texts.find("critical_least", b_crit, rising, **whose, least=low)
    elif low == 0:
        yield texts.find("critical_most", b_crit, rising, **whose, most=high, steps=as_fitted(fit.s_min))
    else:
        bend = (texts.say("bend_unknown") if fit.points < 4 or shape.low <= 1 and shape.high >= 4 else texts.say(
            "bend", sharp=shape.low > 1, soft=shape.high < 1, shape=shape.value, low=shape.low, high=shape.high))
        if fit.lack_of_fit < LACKING:
            bend += " " + texts.say("scatter", p=fit.lack_of_fit, rms=f"{fit.rms_log2:.2f}")
        yield texts.find(
            "critical", b_crit, [bend, texts.say("overheads", overhead=as_fitted(fit.overhead),
                                                 half=as_fitted(fit.half_efficient)), *rising],
            **whose, batch=as_fitted(b_crit), steps=as_fitted(fit.s_min))


def as_fitted(estimate: Estimate) -> str:
    """A value with its interval, to as many digits as that justifies."""
    digits = 2 if estimate.high >= 1.5 * estimate.low else 3
    return f"{number(estimate.value, digits)} ({span(estimate.low, estimate.high, whole)})"


def early_crossing(subject: Subject) -> Iterator[Part]:
    """Where first crossings of runs that went on were early by more than their interval; the table of runs has the
    lasting ones. Their mean is NaN where one is unknown, inf where one did not last. Else whether ENDED or more runs
    that ended at their target may have met it early, by the medians of Crossing.later and Crossing.beyond."""
    early: list[tuple[float, RunCell, list[Crossing], float]] = []
    ended: list[Crossing] = []
    for cell in subject.batches.cells if subject.batches and subject.options.crossing == FIRST else ():
        met = [one for run in cell.runs if not cell.searched and (one := crossing_of(run.trial, subject.goal))]
        ended += [one for one in met if not one.after]
        lasting = float(geometric_mean([one.steps for one in met])) if met else math.nan
        if lasting > cell.steps.high and all(one.after for one in met):
            early.append((cell.steps.value / lasting, cell, met, lasting))
    if early:                   # the batch at which by most
        _, cell, met, lasting = min(early, key=lambda one: one[0])
        after, met_after, model = (sum(map(attrgetter(name), met)) for name in ("after", "met_after", "modelled"))
        more = [SCALING.say("early_option"), SCALING.say_if("early_model", model)]
        yield SCALING.find("early", None, more, batch=cell.global_batch, target=subject.target, first=cell.steps,
                           lasting=lasting if np.isfinite(lasting) else None, model=bool(model), after=after or None,
                           met=met_after, share=met_after / after if after else None)
    elif len(ended) >= ENDED:
        later, beyond = np.median(np.nan_to_num([(one.later, one.beyond) for one in ended]), axis=0).tolist()
        if later >= LATER and beyond <= CHANCE:
            yield SCALING.find("early_ended", target=subject.target, runs=len(ended), later=later)


def curve_table(curve: Curve) -> Table:
    options = curve.regimes.options
    lost = [f"{point.global_batch:,} ({point.met_before_diverging:,})" for point in curve.searched
            if point.met_before_diverging]

    def measured(point: CurvePoint) -> bool:
        return point.steps.met or not math.isnan(point.steps.beyond)

    def value(point: CurvePoint, estimate: Estimate, write: Write) -> Cell:
        if not point.trials:
            return no_cell("diverged" if point.infeasible else "n/a")
        return steps_cell(estimate, write) if measured(point) else no_cell(NEVER)
    return SCALING.table("curve", curve.searched, {
        "global_batch": lambda point: point.global_batch,
        SCALING.column("met_of_search", "met"): lambda point: Cell(
            f"{point.met:,}/{point.trials:,}", point.met,
            below=f"{point.infeasible:,} div." if point.infeasible else ""),
        "best_of": lambda point: curve.n if curve.n and point.trials else math.nan,
        SCALING.column("best_steps", "steps_to_target"): lambda point: value(point, point.steps, whole),
        "examples_to_target": lambda point: value(point, point.steps.scaled(point.global_batch), number),
        "perfect_scaling": lambda point: (curve.perfect.get(point.global_batch, "cut off") if point.steps.met else
                                          "not met" if measured(point) else NEVER)},
        lambda point: point.keys, notes=[
            f"Intervals: {SEARCH.say('best_of_interval', confidence=curve.confidence)}",
            SCALING.say("meanings", perfect=options.perfect_within, useful=options.useful_within),
            SCALING.say_if("bias", len(curve.points) > 2)],
        warnings=[SCALING.say_if("met_then_diverged", lost, batches=lost)], what=curve.target,
        best=SEARCH.say("best_of_each", confidence=curve.confidence))


def fit_table(fit: CriticalBatchFit | None, target: Target | None, trials: TrialKeys = ()) -> Table | None:
    """All that was fitted to the points of these trials; None for None."""
    if fit is None:
        return None
    return SCALING.table("critical-batch", [fit], {
        "b_crit": attrgetter("b_crit"), "s_min": attrgetter("s_min"), "overhead_batch": attrgetter("overhead"),
        "half_efficient_batch": attrgetter("half_efficient"), "shape": attrgetter("shape"),
        "rms_log2": attrgetter("rms_log2"), "lack_of_fit": attrgetter("lack_of_fit"),
        SCALING.column("fitted_batches", "batches"): lambda fit: Cell(number(fit.points), fit.points),
        "left_out": lambda fit: listed(fit.left_out) or "none"}, lambda fit: trials, what=target)


def _draw_repeats(curve: Curve, cells: Sequence[RunCell], axes: Axes) -> None:
    """Steps to target by global batch over repeats of one setting; curves_figure has that of searches."""
    met = [cell for cell in cells if cell.steps.met and cell.steps.value > 0]
    log2_axis(axes, "x", [cell.global_batch for cell in cells])
    steps = [as_shown(cell.steps) for cell in cells]
    seen = [value for one in steps for value in (one.value, one.beyond)]
    if met:
        first, ends = met[0], (cells[0].global_batch, cells[-1].global_batch)
        line = [first.steps.value * first.global_batch / end for end in ends]
        draw_line(axes, zip(ends, line), MUTED, "--", 1.2, label="perfect scaling")
        seen += line
    log2_axis(axes, "y", seen, ends_of(steps))
    mark_regimes(axes, curve.regimes, intervals=False)
    draw_line(axes, ((cell.global_batch, cell.steps.value) for cell in met), BLUE)
    for cell, one in zip(cells, steps):
        mark_estimate(axes, cell.global_batch, one, BLUE, "o", "steps to target")
    label_axes(axes, "global batch B (examples)", "steps to target S")


# Gradient noise scales, and beside the critical batch

def noise_scales(subject: Subject) -> Iterator[Part]:
    """Of the batch at which it is known best: the noise scale, and how it changed."""
    scales = [scale for _, noise in subject.noise for scale in (noise.whole, *noise.quarters)]
    yield table_of_cells("noise-scale", subject.noise, "workers global_batch", {
        "workers": lambda row: row[0].workers[0], "runs": lambda row: len(row[0].samples.seeds),
        "measured_steps": lambda row: row[1].whole.runs, "noise_scale": lambda row: _scale_cell(row[1].whole),
        **_quarters(lambda at, row: _scale_cell(row[1].quarters[at])),
        "grad_sqnorm": lambda row: row[1].whole.grad_sqnorm, "cov_trace": lambda row: row[1].whole.cov_trace},
        of=itemgetter(0), what=subject.target, notes=(
            SCALING.say("noise_scale"), SCALING.say("noise_intervals", confidence=subject.options.confidence),
            SCALING.say_if("noise_no_end", any(math.isinf(scale.high) for scale in scales)),
            SCALING.say_if("noise_negative", any(math.isinf(scale.value) for scale in scales), mark=UNBOUNDED),
            SCALING.say_if("noise_few", any(scale.runs < LEAST_STEPS for scale in scales), least=LEAST_STEPS)))
    if any(len(_windows(noise)) > 1 for _, noise in subject.noise):
        shown = [(cell, _windows(noise)) for cell, noise in subject.noise if _windows(noise)]
        yield Figures(lambda: [SCALING.figure("noise-scale", partial(_draw_noise, shown), keys_of(
            cell for cell, _ in shown), confidence=subject.options.confidence)])
    if (found := best_known(subject.noise)) is None:
        return
    batch, whole, quarters = found[0].batches.in_brief(), found[1].whole, found[1].quarters
    if not math.isfinite(whole.value):
        yield SCALING.find("noise_open", batch=batch, steps=whole.runs)
        return
    first, last = quarters[0], quarters[-1]
    known = all(math.isfinite(quarter.value) for quarter in quarters)
    changed = known and ("grew" if first.high < last.low else "fell" if last.high < first.low else "")
    yield SCALING.find("noise", whole, batch=batch, scale=whole, changed=changed, open=known,
                       first=first.value, last=last.value)


def _quarters(fill: Callable[[int, Any], Cell]) -> Cells:
    return {SCALING.column("noise_scale_quarter", f"noise_scale_quarter_{at + 1}", word=word): partial(fill, at)
            for at, word in enumerate(("first", "second", "third", "last"))}


def _scale_cell(scale: NoiseScale) -> Cell:
    shown = UNBOUNDED if math.isinf(scale.value) else number(scale.value)
    return Cell(shown, scale.value, scale.low, scale.high, span(scale.low, scale.high))


def _draw_noise(found: Sequence[tuple[RunCell, Sequence[NoiseScale]]], axes: Axes) -> None:
    scales = [scale for _, own in found for scale in own]
    ends = [end for s in scales for end in (s.low, s.high if math.isfinite(s.high) else 2 * s.value)]
    log2_axis(axes, "y", [scale.value for scale in scales], ends)      # twice the value: room for an arrow
    for at, (cell, own) in enumerate(found):
        color, middles = shade(at, len(found)), [(scale.first_step + scale.last_step) / 2 for scale in own]
        label = f"W = {listed(cell.workers)}, B = {cell.global_batch:,}" if is_named(at, len(found)) else None
        axes.plot(middles, [scale.value for scale in own], "o-", color=color, linewidth=1, markersize=5,
                  markeredgewidth=0, label=label)
        for middle, scale in zip(middles, own):
            mark_estimate(axes, middle, scale, color, "o", None)
            axes.plot([scale.first_step, scale.last_step], [scale.value] * 2, color=color, linewidth=1.4, alpha=0.35)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: exact(value))
    label_axes(axes, "steps", "noise scale (examples)")


def _windows(noise: Noise) -> list[NoiseScale]:
    return [quarter for quarter in noise.quarters if is_positive(quarter.value) and not math.isnan(quarter.low)]


def beside_critical(subject: Subject) -> Iterator[Part]:
    """The noise scale beside the critical batch; of repeats, where that was fitted."""
    curve = subject.curve if subject.held else subject.batches
    fit = curve.regimes.fit if curve else None
    if fit or subject.held:
        found = NoiseAgainst(subject.target, subject.noise, fit.b_crit if fit else None)
        yield find_noise(found)
        yield Details(lambda: [noise_against_table(found)])


def find_noise(found: NoiseAgainst) -> Finding:
    if found.chosen is None:
        return SCALING.find("noise_unknown")
    (cell, noise), one_end, low, high = found.chosen, one_ended(found.b_crit), found.ratio.low, found.ratio.high
    verdict = None if one_end and math.isnan(low) else SCALING.say(
        "noise_verdict", unknown=math.isnan(low), same=low <= 1 <= high, near=low >= 0.5 and high <= 2, large=low > 1)
    return SCALING.find("noise_against", scale=noise.whole, batch=cell.global_batch,
                        steps=f"the steps to {found.target}" if found.target else "the steps",
                        open=not is_bounded(found.b_crit), one_end=one_end, ratio=found.ratio,
                        critical=as_fitted(found.b_crit) if is_bounded(found.b_crit) else None, verdict=verdict)


def is_bounded(b_crit: Estimate) -> bool:
    """Whether a critical batch has an end at all: NaN and the interval from 0 to inf have none."""
    return b_crit.low > 0 or b_crit.high < math.inf


def one_ended(b_crit: Estimate) -> str:
    """``at least 250``, ``at most 250`` of a critical batch whose interval has one end alone; empty of any other."""
    if math.isinf(b_crit.high):
        return f"at least {number(b_crit.low, 2)}"
    return f"at most {number(b_crit.high, 2)}" if b_crit.low == 0 else ""


def noise_against_table(found: NoiseAgainst) -> Table:
    b_crit = known_cell(found.b_crit)
    return SCALING.table(
        "noise-against", found.measured,
        {"global_batch": lambda row: row[0].global_batch, "noise_scale": lambda row: known_cell(row[1].whole),
         **_quarters(lambda at, row: known_cell(row[1].quarters[at])), "critical_batch": lambda row: b_crit,
         "noise_over_critical": lambda row: known_cell(over(row[1].whole, found.b_crit), ratio)},
        lambda row: row[0].keys, notes=(SCALING.say("noise_of_all"), SCALING.say("noise_published")), what=found.target)
