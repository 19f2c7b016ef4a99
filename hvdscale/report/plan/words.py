"""A plan of workers in sentences: what to take first, then what it is based on."""

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby

from ...analysis.defaults import PROBE_STEPS, RUN_DEVIATION
from ...analysis.growing_batch import GrowingPlan
from ...analysis.intervals import Estimate, geometric_mean
from ...analysis.next_runs import Measurement, NextRuns, next_runs
from ...analysis.step_time import (ASSUMED, ASSUMED_DEVIATION, EXTRAPOLATED, LINKS_BETWEEN, MEASURED, MEMBERS,
                                   REFUTED_AT, SLOWS)
from ...analysis.studies import group_by
from ...analysis.timings import HOURS, LEAST_CHANGE, Timings
from ...analysis.steps_curve import NOISE_WITHIN, PREDICTED, StepsPoint
from ...analysis.trials import EVERY_STEP, JobKey
from ...analysis.worker_plan import PROBED, NoPlan, Option, Request, WorkerPlan
from ...formatting.numbers import counted, duration, in_brackets, listed, number, percent, ratio, unit_of, written
from ...formatting.toml import value_as_toml
from ..document import Finding
from ..texts import GENERAL, PLAN, SOURCES

BEYOND = "~"            # marks steps at a batch beyond those that met the target
CROWDED = "#"           # marks times of hosts with too few free cores
ROLES = ("fastest", "cheapest", "knee")
MOST_NAMED = 4          # worker counts that are named one by one
# keys of a run that the command for the next runs gives by itself, or that are of that run alone
OF_A_RUN = ("workload", "local_batch", "global_batch", "batch_schedule", "accumulate", "seed", "threads", "log",
            "overwrite", "checkpoint", "resume", "save_model", "take_over", "accept_changes", "accepted")
WITHIN = 0.20           # of the best, that an option is said to be, with its chance
SURE = 0.8              # chances of the cheapest and of the knee are said below this one


def title(plan: WorkerPlan) -> str:
    if plan.relative:
        return "How many workers: relative times" + (", predicted" if plan.noise else "")
    return f"How many workers: {plan.target or 'steps as given'}"


def describe_price(request: Request) -> str:
    return PLAN.say("price", price=request.price, alone=not request.per_node, held=request.per_node or None,
                    power="" if request.knee == 1 else f"^{request.knee:g}")


def find_basis(plan: WorkerPlan) -> Iterator[Finding]:
    """What the advice is based on, and what was left out."""
    knee, first = plan.knee, plan.options[0] if plan.options else None
    if first is not None:
        if knee is not None and knee is not first:
            yield PLAN.find("efficiency", workers=knee.workers, guess=BEYOND * knee.beyond,
                            statistical=knee.statistical_efficiency.value, first=first.workers,
                            system=knee.system_efficiency.value)
        if untimed := [option.workers for option in plan.options if option.step_time.mark == ASSUMED]:
            held = plan.request.per_node or plan.times.timings.per_node
            layout = PLAN.say("held", held=held, asked=bool(plan.request.per_node), placed=plan.times.timings.placed)
            yield PLAN.find("links", None, (layout,), counts=_counts(untimed), held=held,
                            within=bool(plan.times.model.between or untimed[0] <= held))
        yield from (*_describe_steps(plan), *_describe_times(plan))
        if laws := plan.times.model.laws:
            yield PLAN.find("laws", fitting=[law for law, share in laws.items() if share >= REFUTED_AT],
                            refuted=[law for law, share in laws.items() if share < REFUTED_AT])
    for why, left_out in group_by(plan.left_out, lambda one: one[1]).items():
        workers = [count for count, _ in left_out]
        yield PLAN.find("not_at", counts=_counts(workers), one=workers == [1], why=why)


def advice(plan: WorkerPlan) -> tuple[str, ...]:
    """What to take, how fast replicas that are synchronized now and then are beside synchronous training and which were
    never seen to meet the target, what to measure next, what chances rest on, and which counts stay within limits."""
    if not plan.options:
        return (PLAN.say("none_runs"),)
    best = min((option for option in plan.synced if option.sync != EVERY_STEP), default=None,
               key=lambda option: option.seconds.value)
    unmet = [sync for sync, curve in plan.curves.items() if not curve.met and curve.points]
    by_replicas = group_by(unmet, lambda sync: sync != EVERY_STEP and sync[0])
    never = "; ".join(f"{counted(replicas, 'replica')} at H = {listed(every for _, every in own)}" if replicas else
                      "synchronous training" for replicas, own in by_replicas.items())
    local = PLAN.say("local_steps", never=never, workers=best and best.workers, replicas=best and best.sync[0],
                     every=best and best.sync[1],
                     ratio=best.speedup if best and plan.synced[0].sync == EVERY_STEP else None).strip()
    found = next_runs(plan)
    then = [describe_next(found), *(command_of(plan, runs) for runs in _alike(found))] if found else []
    return (*verdict(plan), *filter(None, (local, *then)), *cautions(plan), *_describe_limits(plan))


def verdict(plan: WorkerPlan) -> tuple[str, ...]:
    """Where the fastest may lie, then the best choice by what is known; of a plan with options."""
    fastest, cheapest, knee = plan.fastest, plan.cheapest, plan.knee
    if fastest is None or cheapest is None or knee is None:
        return ()
    if len(plan.options) == 1:
        return (f"Known at one worker count only: {_describe_option(plan, fastest)}.",)

    step: dict[str, object] = {}            # along the front from the knee, or to it where it is the last
    if knee in plan.front and len(plan.front) > 1:
        at = min(plan.front.index(knee), len(plan.front) - 2)
        less, more = plan.front[at:at + 2]
        cost, speed = more.cost.value / less.cost.value, less.seconds.value / more.seconds.value
        if min(cost, speed) >= 1:
            step = {"few": less.workers, "many": more.workers, "cost": cost, "speed": speed}
    roles: list[tuple[str, Option, float]] = [("best", fastest, math.inf)]
    if fastest is not cheapest:
        roles = [("fastest", fastest, math.inf), ("cheapest", cheapest, 0), ("knee", knee, plan.request.knee)]
    said = []
    for kind, taken, weight in roles:
        share = plan.decision.chance(taken.at, WITHIN, weight)
        said.append(PLAN.say(kind, within=percent(WITHIN), sure=chance(plan, share), unsure=share < SURE,
                             lost=len(plan.curve.met) < len(plan.curve.points), option=_describe_option(plan, taken),
                             workers=taken.workers, mark=CROWDED * taken.crowded, **step))

    few, many = plan.decision.fastest_workers
    few, many = min(few, fastest.workers), max(many, fastest.workers)
    beyond, asked, ends = many > plan.most_measured, [option.workers for option in plan.options], []
    last = next(option for option in plan.options if option.workers == many)
    if few < many and (few > asked[0] or last is not fastest or beyond):
        lost = {point.global_batch for point in plan.curve.points if point not in plan.curve.met}
        ran = max((one.workers for one in plan.times.timings.found if one.global_batch in lost), default=0)
        apart = last.seconds.low > fastest.seconds.high         # what may be faster there is another batch
        ends.append(PLAN.say(
            "may_be_faster", few=few if few > asked[0] else None, many=many, chosen=last is fastest,
            time=None if apart else _describe_time(plan, last), above=plan.most_measured if beyond else None,
            lost=plan.most_measured if beyond and ran > plan.most_measured else None))
    if many < asked[-1]:
        ends.append(PLAN.say("no_gain", workers=many, sure=_floor(plan.request.confidence)))
    return (*ends, *said) if beyond else (said[0], *ends, *said[1:])


def cautions(plan: WorkerPlan) -> tuple[str, ...]:
    reasons = [PLAN.say(f"assumed_{reason.replace(' ', '_')}", runs=RUN_DEVIATION, times=ASSUMED_DEVIATION,
                        links=LINKS_BETWEEN[0], factor=math.exp(2 * LINKS_BETWEEN[1]), nodes=MEMBERS, hours=HOURS,
                        slow=SLOWS[0], slower=SLOWS[1], steps=PROBE_STEPS) for reason in plan.assumed]
    taken = dict.fromkeys(filter(None, (plan.fastest, plan.cheapest, plan.knee)))
    unmet = [_describe_unmet(one.steps.point) for one in taken if one.steps.point and one.steps.point.unmet]
    timed, most = (max((one.workers for one in found), default=0) for found in (plan.times.timings.found, plan.options))
    asked = reasons and (len(plan.options) > 1 or PROBED in plan.assumed)
    return tuple(filter(None, (*unmet, PLAN.say_if("as_timed", 0 < timed < most, workers=timed),
                               PLAN.say_if("assumed", asked, reasons=reasons))))


def describe_next(found: NextRuns) -> str:
    what = [PLAN.say("measurement", workers=[run.place.workers for run in runs] if len(runs) > 1 else place.workers,
                     steps=None if seeds else PROBE_STEPS, seeds=seeds or None, local=place.local_batch,
                     replicas=place.sync[0], every=place.sync[1] or None)
            for runs in _alike(found) for place, seeds in runs[:1]]
    return PLAN.say("next", what=listed(what), hours=found.worker_hours, before=found.loss, after=found.loss_after,
                    workers=max(run.place.workers for run in found.runs),
                    batch=max((run.place.global_batch for run in found.runs if run.seeds), default=None))


def _alike(found: NextRuns) -> list[list[Measurement]]:
    """Measurements that one command makes: of one local batch, passes, number of seeds and synchronization."""
    return list(group_by(found.runs, lambda run: (run.seeds, run.place.local_batch, *run.place[2:])).values())


def command_of(plan: WorkerPlan, runs: Sequence[Measurement]) -> str:
    """The command that makes measurements of one local batch; "": what was run was no command of ours."""
    job = plan.job.get("workload") or (f"script {plan.job['script']}" if plan.job.get("script") else "")
    place, seeds = runs[0]
    if not job or "script" in plan.job and seeds:
        return ""
    counts = ",".join(str(run.place.workers) for run in runs)
    accumulate = f" --accumulate {place.passes}" if place.passes > 1 else ""
    how = f" --repeats {seeds}" if seeds else " --probe" if "workload" in plan.job else ""
    batch = "--local-batch" if "workload" in plan.job else "--batch"
    target = {"target": str(plan.target)} if plan.target and seeds else {}     # not that which the runs had
    asked = {key: value for key, value in {**plan.job.get("asked", {}).get(place.sync, {}), **target}.items()
             if key not in OF_A_RUN and value is not None}
    rest = "".join(f" --set {shlex.quote(f'{key}={value_as_toml(value)}')}" for key, value in asked.items()
                   if "workload" in plan.job)
    return f"    hvdscale-scale {job} --workers {counts} {batch} {place.local_batch}{accumulate}{how}{rest} --out next"


def _describe_unmet(point: StepsPoint) -> str:
    """That seeds at a batch did not meet the target, where some did not."""
    return PLAN.say("unmet", batch=point.global_batch, met=point.met, seeds=point.seeds, searched=point.searched,
                    known=point.searched or not math.isinf(point.steps.high), share=1 - point.unmet,
                    runs=1 / (1 - point.unmet) if point.unmet < 1 else math.inf)


def chance(plan: WorkerPlan, share: float) -> str:
    """A share of draws as a chance: ``60%``, ``over 95%``; none beyond what the draws can resolve."""
    most = plan.surest
    if share > most:
        return f"over {_floor(most)}"
    return f"under {number(100 * (1 - most), 1)}%" if share < 1 - most else percent(share)


def _floor(share: float) -> str:
    """In whole percent, and never 100%."""
    return f"{math.floor(100 * share + 1e-9)}%"


def _describe_option(plan: WorkerPlan, option: Option) -> str:
    """``32 workers (4 nodes), batch 1,024: 12.3 min (10-15), cost 3.40, extrapolated``."""
    batches = [point.global_batch for point in plan.curve.met] if option.steps.mark == EXTRAPOLATED else []
    above = bool(batches) and option.global_batch > batches[-1]
    return PLAN.say("option", workers=option.workers, nodes=option.nodes if plan.request.per_node else None,
                    batch=option.global_batch, replicas=option.sync[0], every=option.sync[1] or None,
                    cost=option.cost.value, time=_describe_time(plan, option) + CROWDED * option.crowded,
                    priced=plan.request.price is not None or plan.relative,
                    mark=None if option.mark == MEASURED else option.mark, side="beyond" if above else "below",
                    limit=next(iter(batches[::-1] if above else batches), None))


def _describe_time(plan: WorkerPlan, option: Option) -> str:
    seconds, size = option.seconds, 1 if plan.relative else unit_of(option.seconds.value)[0]
    ends = in_brackets(seconds.low / size, seconds.high / size) if seconds.high > seconds.low else ""
    if plan.relative:
        return f"{ratio(seconds.value)}{ends} of the time of {counted(plan.options[0].workers, 'worker')}"
    return f"{duration(seconds.value)}{ends}"


def _describe_limits(plan: WorkerPlan) -> Iterator[str]:
    """Which worker counts stay within deadline and budget, and the best of them."""
    request = plan.request
    if not (request.deadline or request.budget):
        return
    found, limits = plan.within(), {"deadline": request.deadline, "budget": request.budget}
    if not found:
        best = max(plan.options, key=plan.chance_within)
        share = plan.chance_within(best)
        yield PLAN.say("out_of_reach", workers=best.workers if share >= 1 - plan.surest else None,
                       chance=chance(plan, share), **limits)
        return
    roles: dict[Option, list[str]] = {}
    for what, limited, name in (("cheapest", request.deadline, "cost"), ("fastest", request.budget, "seconds")):
        if limited:
            roles.setdefault(min(found, key=lambda option: getattr(option, name).value), []).append(what)
    said = []
    for best, names in roles.items():
        name, point = "cost" if "cheapest" in names else "seconds", best.steps.point
        known = best in (plan.fastest, plan.cheapest, plan.knee)
        unmet = "" if known or not point or not point.unmet else _describe_unmet(point)
        safe = min(plan.within(plan.surest), key=lambda option: getattr(option, name).value, default=None)
        said.append(PLAN.say("best_within", best=" and ".join(names) if len(found) > 1 else "",
                             option=counted(best.workers, "worker") if known else _describe_option(plan, best),
                             chance=chance(plan, plan.chance_within(best)), spread=bool(plan.run_spread.freedom),
                             met=point.met if point and point.seeds and not point.unmet else None,
                             seeds=point.seeds if point else None, least=None if safe is best else _floor(plan.surest),
                             safe=safe.workers if safe else None, unsafe=safe is None, unmet=unmet))
    yield PLAN.say("within", workers=[option.workers for option in found] if len(found) > 1 else None,
                   best=" ".join(said), **limits)


def _counts(workers: Sequence[int]) -> str:
    """``16, 32 and 64``, or ``16 to 1,024`` of many."""
    named = [f"{worker:,}" for worker in workers]
    return listed(named) if len(named) <= MOST_NAMED else f"{named[0]} to {named[-1]}"


def _describe_steps(plan: WorkerPlan) -> Iterator[Finding]:
    curve, marks = plan.curve, {option.steps.mark for option in plan.options}
    met = [point.global_batch for point in curve.met]
    if curve.relative and curve.critical is None:
        yield PLAN.find("steps_unknown")
        return
    scale = plan.noise
    if PREDICTED in marks and scale:
        yield PLAN.find("steps_predicted", run=_counts(met) if met else None, scale=scale.value,
                        interval=in_brackets(scale.low, scale.high), start=scale.first_step if scale.runs else None,
                        end=scale.last_step, factor=NOISE_WITHIN, source=SOURCES["MCCANDLISH"].split(",")[0])
    if EXTRAPOLATED in marks:
        yield PLAN.find("steps_outside", first=met[0], last=met[-1] if len(met) > 1 else None, mark=BEYOND,
                        fitted=curve.critical is not None, alone=len(met) < 2)
    if any(point.steps.runs < 2 for point in curve.met):
        yield PLAN.find("steps_of_one_run")


def _describe_times(plan: WorkerPlan) -> Iterator[Finding]:
    timings, model = plan.times.timings, plan.times.model
    yield PLAN.find("times", ways=len(timings.found), machine=str(timings.machine),
                    missed=model.misses if len(timings.found) > 2 else None)
    met = [point.global_batch for point in plan.curve.met if point.trials]
    timed = [one.global_batch for one in timings.found]
    if met and timed and not (min(timed) <= max(met) and min(met) <= max(timed)):
        met_at, timed_at = (f"{min(one):,} to {max(one):,}" if len({*one}) > 1 else f"{one[0]:,}"
                            for one in (met, timed))
        yield PLAN.find("apart", met=met_at, timed=timed_at)
    yield from describe_left_out(timings)
    if not timings.crowded and any(one.crowded for one in timings.found):
        yield PLAN.find("all_crowded", mark=CROWDED)
    if not timings.spread.freedom:
        yield PLAN.find("times_once")
    if repeats := timings.spread.of_repeats:
        yield GENERAL.find("repeats", plan=True, **repeats)
    if timings.slowing:
        yield from describe_slowing(timings.slowing, any(one.slowed for one in timings.found))


def describe_slowing(slowing: Sequence[float], used: bool = False) -> Iterator[Finding]:
    """What long runs show of their first steps, where it is more than noise."""
    change = float(geometric_mean(slowing)) - 1
    if abs(change) > LEAST_CHANGE:
        yield GENERAL.find("slowing", runs=len(slowing), change=abs(change), longer=change > 0, steps=PROBE_STEPS,
                           used=used)


def describe_left_out(timings: Timings) -> Iterator[Finding]:
    if runs := sum(len(one.trials) for one in timings.crowded):
        yield PLAN.find("crowded", runs=runs, workers=sorted({one.workers for one in timings.crowded}))
    if timings.others:
        yield PLAN.find("times_of_others", machines=list(map(str, timings.others)))


def describe_no_join(found: NoPlan, timed: Sequence[JobKey]) -> str:
    """Why the logs of --times-from, which are of these workloads, give no times for a plan; names the nearest."""
    def differing(other: JobKey) -> list[str]:          # the optimizer is sgd, not lars
        pairs = {name: (getattr(other, field), getattr(found.workload, field))
                 for field, name in PLAN.words("workload").items()}
        return [f"{name} {written(one or 'unknown')}, not {written(two or 'unknown')}"
                for name, (one, two) in pairs.items() if one != two]
    return PLAN.say("not_joined", workload=found.workload, target=found.target,
                    differing=min(map(differing, timed), key=len))


def describe_no_plan(found: NoPlan) -> str:
    """Why there is no plan, and what would make one."""
    return PLAN.say(f"refused_{found.why}", workload=found.workload, target=found.target,
                    metric=found.target and found.target.column, best=None if math.isnan(found.best) else found.best,
                    **{name: getattr(found.often, name, None) or None for name in ("global_batch", "met", "seeds")})


# Of a growing batch

def describe_growing(plan: GrowingPlan) -> str:
    if (best := plan.fastest) is None:
        return f"Nothing is known of this batch at these worker counts: {plan.left_out[0][1]}."
    beside = [PLAN.say("growing_beside", ratio=one.seconds_ratio, batch=one.global_batch) for one in best.beside]
    return PLAN.say("growing", workers=best.workers, time=_describe_range(best.seconds), predicted=plan.predicted,
                    mark=best.mark, beside=beside)


def describe_phases(plan: GrowingPlan) -> tuple[str, ...]:
    """Which workers pay at each batch, beside the same workers all along."""
    found, alone = plan.phases_at_knee, plan.knee
    if found is None or alone is None or len(found.phases) < 2:
        return ()
    relaunch = PLAN.say("relaunch", seconds=plan.request.relaunch, starts=plan.request.starts or None)
    if not found.changes:
        return (PLAN.say("phases_alike", workers=found.phases[0].workers, relaunch=relaunch),)
    ways = (f"{counted(workers, 'worker')} at batch {written([one.global_batch for one in own])}"
            for workers, own in groupby(found.phases, lambda one: one.workers))
    return (PLAN.say("phases", ways=", ".join(ways), time=_describe_range(found.seconds), cost=found.cost.value,
                     workers=alone.workers, alone=alone.seconds.value, alone_cost=alone.cost.value, relaunch=relaunch),)


def job_lines(plan: GrowingPlan) -> Iterator[str]:
    """The jobs of Slurm that carry out the phases, where the workers change; JOB_SCRIPT is what trains."""
    found, schedule = plan.phases_at_knee, json.dumps(plan.batches.pairs)
    if found is None or not found.changes:
        return
    jobs = [next(own) for _, own in groupby(found.phases, lambda one: one.workers)]     # their first phases
    for at, one in enumerate(jobs):
        until = f" --steps {jobs[at + 1].start}" if at + 1 < len(jobs) else ""
        after = " --dependency=afterok:$job" if at else ""
        yield (f"job=$(sbatch --parsable{after} -N{one.nodes if plan.request.per_node else 1} "
               f"--ntasks-per-node={min(plan.request.per_node or one.workers, one.workers)} JOB_SCRIPT OPTIONS "
               f"--set batch_schedule='{schedule}' --checkpoint CHECKPOINTS --resume auto{until})")


def _describe_range(value: Estimate) -> str:
    has_ends = 0 < value.low < value.high < math.inf
    return duration(value.value) + (f" ({duration(value.low)} to {duration(value.high)})" if has_ends else "")
