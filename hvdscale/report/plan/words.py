"""A plan of workers in sentences: what to take first, then what it is based on."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...analysis.noise import NoiseScale
from ...analysis.step_laws import LAWS
from ...analysis.step_time import EXTRAPOLATED, FAR, MEASURED, SURE_WITHIN, Timings
from ...analysis.steps_curve import NOISE_WITHIN, PREDICTED
from ...analysis.trials import JobKey
from ...analysis.worker_plan import (AT_ONCE, MODEL, NO_STEPS, NO_TIMES, ONE_RUN, NoPlan, Option, Request, Value,
                                     WorkerPlan)
from ...formatting.numbers import capital, counted, duration, in_brackets, listed, number, percent, ratio, unit_of
from ..columns import MCCANDLISH

WORKLOAD_FIELDS = {"dataset": "the data set is", "model": "the model is", "model_args": "the model's arguments are",
                   "optimizer": "the optimizer is", "train_examples": "the number of training examples is"}
BEYOND = "~"            # marks steps at a batch beyond those that met the target
CROWDED = "#"           # marks times of hosts with fewer cores than workers
ROLES = ("fastest", "cheapest", "knee")
MOST_NAMED = 4          # worker counts that are named one by one
CLAIMED = 0.8           # chances of a knee up to this one were right less often than they said
TOO_LOW = 100           # a B_crit this many times smaller than the smallest batch is none
ASSUMED = {
    ONE_RUN: "the steps of a batch are those of one run",
    PREDICTED: "the steps are a prediction by the gradient noise scale"}


def title(plan: WorkerPlan) -> str:
    """What the plan is for."""
    if plan.relative:
        return "How many workers: relative times" + (", predicted" if plan.noise else "")
    return f"How many workers: {plan.target or 'steps as given'}"


def price_said(request: Request) -> str:
    """What costs are in."""
    what = "node-hour" if request.per_node else "worker-hour"
    unit = f"{what}s" if request.price is None else f"the unit of the price, {number(request.price)} a {what}"
    power = "" if request.knee == 1 else f"^{request.knee:g}"
    knee = f"The gain ends at the knee, the least cost x time{power}."
    if not request.per_node:
        return f"Costs are in {unit} (with --per-node, a node-hour). {knee}"
    return f"Costs are in {unit}; a node holds {counted(request.per_node, 'worker')} and is paid whole. {knee}"


def summary(plan: WorkerPlan) -> tuple[str, ...]:
    """What to take, then what it is based on."""
    if not plan.options:
        return (*advice(plan), *_left_out_said(plan))
    return (*advice(plan), *_open_said(plan), *_efficiency_said(plan), *_reach_said(plan),
            *_bounded_said(plan), *_steps_said(plan), *_times_said(plan), *_laws_said(plan), *_left_out_said(plan))


def advice(plan: WorkerPlan) -> tuple[str, ...]:
    """What to take, and which worker counts stay within deadline and budget."""
    return (*picks_said(plan), *_limits_said(plan))


def picks_said(plan: WorkerPlan) -> list[str]:
    """What to take, and what speaks against being sure of it."""
    if not plan.eligible:
        return ["Nothing to recommend: " + (
            "none of these worker counts can run." if not plan.options else
            "each of these worker counts needs a batch whose steps are open, or links that no log has timed."
            if _opened(plan) else "at each of these worker counts the time to target is known only from below.")]
    return [*verdict(plan), *cautions(plan)]


def verdict(plan: WorkerPlan) -> tuple[str, ...]:
    """In at most three sentences the fastest, the cheapest, and where the gain ends, of a plan with something eligible.
    """
    fastest, cheapest, knee = plan.fastest, plan.cheapest, plan.knee
    if fastest is None or cheapest is None or knee is None:
        return ()
    if len(plan.eligible) == 1:
        return (f"Known at one worker count only: {_option_said(plan, fastest)}.",)
    if fastest is cheapest:
        more = [f"No gain beyond {counted(fastest.workers, 'worker')}: more take longer."] * any(
            option.workers > fastest.workers for option in plan.eligible)
        return (f"Fastest and cheapest: {_choice_said(plan, fastest, math.inf)}", *more)
    return (f"Fastest: {_choice_said(plan, fastest, math.inf)}", f"Cheapest: {_choice_said(plan, cheapest, 0)}",
            _gain_said(plan, knee))


def cautions(plan: WorkerPlan) -> tuple[str, ...]:
    """What speaks against being sure of a verdict."""
    return (*(said for option in _picked(plan) for said in _unmet_said(option)), *_assumed_said(plan))


def _choice_said(plan: WorkerPlan, option: Option, weight: float) -> str:
    sure = "" if plan.assumed() else f"; {chance(plan, plan.chance_of(option, weight))} sure"
    return f"{_option_said(plan, option)}{sure}."


def _gain_said(plan: WorkerPlan, knee: Option) -> str:
    """Where the knee is, and what the step beyond it, or else to it, costs and buys."""
    front = plan.front
    last = knee is max(plan.eligible, key=lambda option: option.workers)
    share = plan.chance_of(knee, plan.request.knee)
    sure = "" if plan.assumed() else f" ({chance(plan, share)} sure)" if share > CLAIMED else " (not sure)"
    known = "timed" if knee.mark == MEASURED else "known"
    said = (f"Gain {'lasts to' if last else 'ends at'} {counted(knee.workers, 'worker')}"
            f"{f', the most {known}' * last}{sure}")
    if knee not in front:
        return f"{said}."
    at = front.index(knee)
    few, many = front[at:at + 2] if at + 1 < len(front) else front[at - 1:at + 1]
    where = f"from {few.workers:,}" if many is knee else f"from {few.workers:,} to {many.workers:,}"
    return (f"{said}: {where}, {ratio(many.cost.value / few.cost.value)}x the cost buys "
            f"{ratio(few.seconds.value / many.seconds.value)}x the speed.")


def _picked(plan: WorkerPlan) -> list[Option]:
    return list(dict.fromkeys(option for option in (plan.fastest, plan.cheapest, plan.knee) if option))


def _unmet_said(option: Option) -> list[str]:
    """That seeds at its batch did not meet the target, where some did not."""
    point = option.steps.point
    if point is None or not point.unmet > 0:
        return []
    what = (f"the search's fewest; by these seeds {percent(1 - point.unmet)} of runs meet it, so that one which does "
            f"takes {number(1 / (1 - point.unmet), 2)} runs on average" if point.searched else
            "the median over all seeds, without an upper end: a run may not meet it at all")
    return [f"Careful: at batch {point.global_batch:,} only {point.met} of {counted(point.seeds, 'seed')} met the "
            f"target. The steps there are {what}."]


def _assumed_said(plan: WorkerPlan) -> list[str]:
    """Why no chance is given, where none is."""
    names = plan.times.model.names
    reasons = [ASSUMED[reason] if reason != MODEL else
               f"the logs determine {len(plan.determined) or 'none'} of the {len(names)} parameters of the step-time "
               "model, the others have wide priors" for reason in plan.assumed()]
    return [f"Confidence unknown: {listed(reasons)}."
            ] if reasons and len(plan.eligible) > 1 else []


def chance(plan: WorkerPlan, share: float) -> str:
    """A share of draws as a chance: ``60%``, ``over 95%``; none beyond what the draws can resolve."""
    most = plan.surest
    if share > most:
        return f"over {_floor(most)}"
    return f"under {number(100 * (1 - most), 1)}%" if share < 1 - most else percent(share)


def _floor(share: float) -> str:
    """In whole percent, and never 100%."""
    return f"{math.floor(100 * share + 1e-9)}%"


def _option_said(plan: WorkerPlan, option: Option) -> str:
    """``32 workers (4 nodes), batch 1,024: 12.3 min (10-15), cost 3.40, extrapolated``."""
    request = plan.request
    nodes = f" ({counted(option.nodes, 'node')})" if request.per_node else ""
    known = "" if option.mark == MEASURED else f", {option.mark}{_beyond_said(plan, option)}"
    cost = number(option.cost.value)
    priced = request.price is not None or plan.relative
    cost = f"cost {cost}" if priced else f"{cost} {'node' if request.per_node else 'worker'}-hours"
    return f"{counted(option.workers, 'worker')}{nodes}, batch {option.global_batch:,}: {_time_said(plan, option)}, " \
           f"{cost}{known}"


def _beyond_said(plan: WorkerPlan, option: Option) -> str:
    """Of an extrapolated batch the last one that met the target."""
    batches = [point.global_batch for point in plan.curve.met]
    if option.steps.mark != EXTRAPOLATED or not batches:
        return ""
    above = option.global_batch > batches[-1]
    return f" beyond batch {batches[-1]:,}" if above else f" below batch {batches[0]:,}"


def _time_said(plan: WorkerPlan, option: Option) -> str:
    if plan.relative:
        first = counted(plan.options[0].workers, "worker")
        return f"{ratio(option.seconds.value)}{_ends(option.seconds)} of the time of {first}"
    return f"{duration(option.seconds.value)}{_ends(option.seconds, unit_of(option.seconds.value)[0])}"


def _ends(value: Value, size: float = 1) -> str:
    return in_brackets(value.low / size, value.high / size) if value.high > value.low else ""


def _opened(plan: WorkerPlan) -> list[Option]:
    return [option for option in plan.options if option.steps.open]


def _open_said(plan: WorkerPlan) -> list[str]:
    """That batches beyond those run are no choice, what is known of steps there, and which run would show more."""
    curve, last = plan.curve, plan.curve.met[-1].global_batch if plan.curve.met else 0
    following = min(4 * last, getattr(plan.workload, "train_examples", 0) or 4 * last)
    held_back = curve.open_above and not plan.request.global_batch and not plan.request.local_batch and any(
        option.global_batch == last for option in plan.options)
    if not (_opened(plan) or held_back) or math.isinf(curve.at(following).value):       # inf: ran, and did not meet
        return []
    if curve.critical_ends is None:
        why = "B_crit needs three batches"
    else:
        low, high = curve.critical_ends
        most = f", at most {number(high, 2)}" if high < math.inf else ", without an upper end"
        why = (f"B_crit is at least {number(low, 2)}{most}" if low > curve.met[0].global_batch / TOO_LOW else
               "these batches do not bound B_crit")
    ends = (number(end, 2) for end in curve.at(following).interval(plan.request.confidence))
    more = (f" A run at batch {following:,} would narrow this: {' to '.join(ends)} steps are possible there."
            if following > last else "")
    return [f"No batch beyond {last:,} is recommended: {why}, so steps may keep falling as in "
            f"perfect scaling, or hardly at all.{more}"]


def _limits_said(plan: WorkerPlan) -> list[str]:
    request = plan.request
    limits = [duration(request.deadline)] if request.deadline else []
    limits += [f"a cost of {number(request.budget)}"] if request.budget else []
    if not limits or not plan.eligible:
        return []
    found = plan.within()
    if not found:
        best = max(plan.eligible, key=plan.chance_within)
        share = plan.chance_within(best)
        at = f", at {counted(best.workers, 'worker')}," if share >= 1 - plan.surest else ""
        rest = "" if plan.assumed(best) else f"; the best chance{at} is {chance(plan, share)}"
        up_to = f" at batches up to {plan.curve.met[-1].global_batch:,}" if _opened(plan) else ""
        return [f"Out of reach: none of these worker counts{up_to} is likely to stay within {listed(limits)}{rest}."]
    said = [] if len(found) == 1 else [f"{listed(f'{option.workers:,}' for option in found)} workers."]
    found_best: dict[Option, list[str]] = {}
    for what, limited, name in (("cheapest", request.deadline, "cost"), ("fastest", request.budget, "seconds")):
        if limited:
            found_best.setdefault(min(found, key=lambda option: getattr(option, name).value), []).append(what)
    for option, names in found_best.items():
        what = f"{capital(' and '.join(names))} of them: " if len(found) > 1 else ""
        said.append(_best_within_said(plan, what, option, found, "cost" if "cheapest" in names else "seconds"))
    return [f"Within {listed(limits)}: {' '.join(said)}"]


def _best_within_said(plan: WorkerPlan, what: str, best: Option, found: Sequence[Option], name: str) -> str:
    known = best in _picked(plan)
    who = f"{what}{counted(best.workers, 'worker') if known else _option_said(plan, best)}"
    lost = [] if known else _unmet_said(best)
    if plan.assumed(best):
        return " ".join([f"{who}; how surely is assumed, not measured.", *lost])
    safe = min(plan.within(plan.surest), key=lambda option: getattr(option, name).value, default=None)
    rest = ("" if safe is best else f"; none is {_floor(plan.surest)} sure" if safe is None else
            f"; to be {_floor(plan.surest)} sure, {counted(safe.workers, 'worker')}")
    point, whom = best.steps.point, "that a run stays" if plan.run_spread.freedom else "that the mean of runs stays"
    given = (f", if it meets the target as {point.met} of {counted(point.seeds, 'seed')} did"
             if point and point.seeds and not point.unmet else "")
    return " ".join([f"{who}; {chance(plan, plan.chance_within(best))} sure {whom} within{given}{rest}.", *lost])


def _efficiency_said(plan: WorkerPlan) -> list[str]:
    knee = plan.knee
    if knee is None or knee is plan.options[0]:
        return []
    guess = BEYOND if knee.steps.beyond else ""
    return [f"At {counted(knee.workers, 'worker')} statistical efficiency is "
            f"{guess}{ratio(knee.statistical_efficiency.value)} (examples needed at {plan.options[0].workers:,} over "
            f"examples needed) and system efficiency {ratio(knee.system_efficiency.value)} (speed won over workers "
            "added)."]


def _reach_said(plan: WorkerPlan) -> list[str]:
    """That the step time has no upper end where there are too many workers, and which runs would change that."""
    far = [option.workers for option in plan.options if option.out_of_reach]
    if not far:
        return []
    model, most = plan.times.model, max(one.workers for one in plan.times.timings.found)
    more = ("" if model.reach == FAR else
            f", or repeats that bring the error of the times below {percent(SURE_WITHIN)}")
    return [f"Step times at {_counts(far)} workers have no upper end, so none of these counts is recommended: they "
            f"need more than {model.reach} times the workers or nodes that were timed (up to {counted(most, 'worker')})"
            f". Runs at more workers would extend the range{more}."]


def _bounded_said(plan: WorkerPlan) -> list[str]:
    bounded = [option.workers for option in plan.options if option.bounded]
    if not bounded:
        return []
    per_node = plan.request.per_node or plan.times.timings.per_node
    links, runs = (("within a node", f"up to {counted(per_node, 'worker')} on one node")
                   if plan.times.model.between or bounded[0] <= per_node else
                   ("between nodes", "two nodes or more"))
    node = (f"A node holds {counted(per_node, 'worker')}" if plan.request.per_node else
            f"The logs had up to {counted(per_node, 'worker')} on a node; --per-node says how many there will be")
    return [f"At {_counts(bounded)} workers a step needs links {links}, which no log has timed: the times there are "
            f"lower bounds, the low ends of their {plan.request.confidence:.0%} intervals as if these links cost "
            f"nothing, and no recommendation. Time runs on {runs}, or give the output of a benchmark of the network "
            f"(--network), or --bandwidth and --latency. {node}."]


def _counts(workers: Sequence[int]) -> str:
    """``16, 32 and 64``, or ``16 to 1,024`` of many."""
    named = [f"{one:,}" for one in workers]
    return listed(named) if len(named) <= MOST_NAMED else f"{named[0]} to {named[-1]}"


def _steps_said(plan: WorkerPlan) -> list[str]:
    curve = plan.curve
    if curve.relative and curve.critical is None:
        return ["The steps to target are not known; at one global batch they are the same at any worker count, so "
                "times compare."]
    marks = {option.steps.mark for option in plan.options}
    said = []
    if PREDICTED in marks:
        said += [_prediction_said(plan, plan.noise)] if plan.noise else []
    if EXTRAPOLATED in marks:
        batches = [point.global_batch for point in curve.met]
        run = f"{batches[0]:,} to {batches[-1]:,}" if len(batches) > 1 else f"{batches[0]:,}"
        how = ("follow the curve fitted to the others" if curve.critical is not None else
               "may lie anywhere between perfect scaling and no gain"
               if len(batches) < 2 else "may fall by as much as between the outermost two, or less")
        said.append(f"Some batches lie outside those that met the target ({run}), and are marked {BEYOND}: steps there "
                    f"{how}.")
    if any(point.steps.runs < 2 for point in curve.met):
        said.append("Where the steps of a batch are those of one run, the intervals hold nothing of the spread between "
                    "seeds.")
    return said


def _prediction_said(plan: WorkerPlan, scale: NoiseScale) -> str:
    curve = plan.curve
    over = (f", over steps {scale.first_step:,} to {scale.last_step:,}; it usually grows in training"
            if scale.steps else ", as given")
    run = _counts([point.global_batch for point in curve.met]) if curve.met else ""
    what = f"Steps at other batches than {run} are a prediction: they" if run else (
        "A prediction, before any full run: steps")
    return (f"{what} follow S_min (1 + B_crit / B), with the gradient noise scale for B_crit: "
            f"{number(scale.noise_scale)} examples{in_brackets(scale.low, scale.high)}{over}. On most workloads the "
            f"two were within a factor {NOISE_WITHIN:g} ({MCCANDLISH.split(',')[0]}), which the intervals hold.")


def _times_said(plan: WorkerPlan) -> list[str]:
    timings, model = plan.times.timings, plan.times.model
    missed = f"; the model of the others misses them by {percent(model.misses)}" if model.settings > 2 else ""
    said = [f"Step times: {counted(len(timings.found), 'way')} of running timed on {timings.machine}{missed}. "
            "Times exclude evaluation and start-up."]
    said += _apart_said(plan)
    if timings.crowded:
        said += crowded_said(timings)
    elif any(one.crowded for one in timings.found):
        said.append(f"{CROWDED} the host had fewer cores than workers: these times are not to be trusted, nor is what "
                    "follows from them for a real cluster.")
    if timings.others:
        said.append(f"Left out: step times on {listed(map(str, timings.others))}; those of one machine are compared.")
    if not timings.spread.freedom:
        said.append("No way of running was timed twice: a spread of 5% is assumed.")
    return said


def _apart_said(plan: WorkerPlan) -> list[str]:
    """That no batch was timed among those whose steps are known, where none was."""
    met, timed = ([point.global_batch for point in plan.curve.met if point.trials],
                  [one.global_batch for one in plan.times.timings.found])
    if not met or not timed or min(timed) <= max(met) and min(met) <= max(timed):
        return []
    return [f"The batches do not overlap: steps are known at {_span_of(met)} examples, step times at "
            f"{_span_of(timed)}. Every time to target extrapolates one of them; time steps at a batch that was run to "
            "the target."]


def _span_of(batches: Sequence[int]) -> str:
    return f"{min(batches):,} to {max(batches):,}" if len({*batches}) > 1 else f"{batches[0]:,}"


def crowded_said(timings: Timings) -> list[str]:
    """Which runs on hosts with fewer cores than workers are left out."""
    runs = sum(len(one.trials) for one in timings.crowded)
    return [f"Left out: the step times of {counted(runs, 'run')} at "
            f"{listed(sorted({one.workers for one in timings.crowded}))} workers, as the host had fewer cores than "
            "workers. Their steps count."] if runs else []


def _laws_said(plan: WorkerPlan) -> list[str]:
    """Which laws of the step time the timings leave standing."""
    model = plan.times.model
    if len(model.fits) < 2:
        return []
    fitting, refuted = ([str(fit.law) for fit in sorted(model.fits, key=lambda fit: LAWS.index(fit.law))
                         if fit.refuted == out] for out in (False, True))
    return [f"Step-time laws that fit the timings: {listed(fitting)}. "
            + (f"Refuted: {listed(refuted)}. " if refuted else "") + "Intervals cover all laws that fit."]


def _left_out_said(plan: WorkerPlan) -> list[str]:
    reasons: dict[str, list[int]] = {}
    for workers, why in plan.left_out:
        reasons.setdefault(why, []).append(workers)
    return [f"Not at {_counts(workers)} worker{'s' * (workers != [1])}: {why}." for why, workers in reasons.items()]


def not_joined_said(found: NoPlan, timed: Sequence[JobKey]) -> str:
    """Why the logs of --times-from, which are of these workloads, give no times for a plan; names the nearest."""
    differing = min((_differing(found.workload, other) for other in timed), key=len)
    return (f"{_whose(found)}: no log of --times-from is of this workload. In the nearest one {listed(differing)}. "
            "Logs join where all names and the number of training examples are the same: import both with the same "
            "ones, or take the times of this workload with hvdscale-scale --probe.")


def _differing(one: JobKey | None, other: JobKey) -> list[str]:
    """``the optimizer is sgd, not lars``: each field of the other workload that differs."""
    return [f"{name} {_field(getattr(other, field))}, not {_field(getattr(one, field))}"
            for field, name in WORKLOAD_FIELDS.items() if getattr(one, field) != getattr(other, field)]


def _field(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and value else str(value) if value else "unknown"


def _whose(found: NoPlan) -> str:
    return f"{found.workload}{f': {found.target}' if found.target else ''}"


def no_plan_said(found: NoPlan) -> str:
    """Why there is no plan, and what would make one."""
    where = _whose(found)
    if found.why == NO_TIMES:
        return (f"{where}: no trial here ran to its end with its time taken, so the seconds of a step are not known. "
                "Add logs of runs, or of hvdscale-scale --probe.")
    if found.why == NO_STEPS:
        return (f"{where}: no run was held against a target and the gradient noise scale was not measured, so it is "
                "not known what a larger batch saves. Give --target, or logs of runs with --set noise_every=1, or "
                "--noise-scale, or compare times at one --global-batch.")
    if found.why == AT_ONCE:
        return f"{where}: met before the first step, so there is nothing to plan. Use a stricter target."
    known = found.target and found.best == found.best
    best = f" The best {found.target.column} was {number(found.best)}." if found.target and known else ""
    return f"{where}: not met by most runs at any batch.{best} Use a target that they reach, or longer runs."
