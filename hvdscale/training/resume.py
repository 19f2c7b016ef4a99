"""What a run resumes from: a checkpoint of the same problem, and the log that belongs to it."""
from __future__ import annotations

import json
import os
from dataclasses import replace

from ..errors import CheckpointError, ExitCode, LogError, PlanError
from ..log.reader import Log, read_log
from ..log.repair import INTERRUPTED
from ..log.schema import Status
from ..plan.plan import Plan, flat
from ..plan.settings import Settings
from ..workers.group import Workers
from .checkpoint import listed, read, read_plan
from .outcome import Start, Stop
from .snapshot import share

# measurement fields that say when the run ends
ENDS = ("budget_steps", "budget_seconds", "target", "keep_going", "eval_every")


def find_start(settings: Settings, plan: Plan, workers: Workers) -> Start:
    """Where the run starts: rank 0 looks, all ranks have what it found; a collective.

    Raises CheckpointError, PlanError or LogError on all ranks where checkpoint, plan and log do not belong together.
    """
    found = Start()
    with workers.together("the checkpoint to resume from"):
        if workers.rank == 0 and settings.checkpoint is not None:
            found = _find(settings, plan)
    return shared(found, workers)


def known_ghost_batch(settings: Settings, workers: Workers) -> int | None:
    """The ghost batch of the checkpoint that a run resumes from, where the user set none; a collective.

    None where there is no such checkpoint, or none that can be read: find_start says what is wrong with it.
    """
    known = None
    with workers.together("the checkpoint to resume from"):
        if workers.rank == 0 and settings.checkpoint is not None and settings.ghost_batch is None:
            plans = map(read_plan, _candidates(settings))
            known = next((plan["problem"]["ghost_batch"] for plan in plans if plan is not None), None)
    return workers.gather(known, "ghost batch")[0]


def shared(found: Start, workers: Workers) -> Start:
    """Rank 0's start, on all ranks; a collective."""
    start = workers.gather(replace(found, state=None), "start")[0]
    start.state = share(found.state, workers)
    if start.state is not None:
        generators = start.state["random"]          # one of each rank; other ranks than these keep their own
        start.state["random"] = generators[workers.rank] if len(generators) == workers.size else None
    return start


def _find(settings: Settings, plan: Plan) -> Start:
    folder, there = settings.checkpoint, listed(settings.checkpoint)
    if settings.resume == "none":
        if there and not settings.overwrite:
            raise CheckpointError(f"{folder} has checkpoints, the newest of step {there[0][0]}: --resume auto resumes "
                                  "from it, --overwrite starts from scratch and removes them")
        return Start()
    paths = _candidates(settings)
    if not paths:
        return _without_checkpoint(settings, plan)
    start = _newest(paths, settings, plan)
    in_folder = any(os.path.samefile(start.checkpoint, path) for _, path in there)
    if there and not in_folder and not settings.overwrite:
        raise CheckpointError(f"{folder} has checkpoints of its own, beside {start.checkpoint}: choose another "
                              "--checkpoint folder, or --overwrite them")
    return replace(start, in_folder=in_folder)


def _candidates(settings: Settings) -> list[str]:
    """The checkpoints that the run may resume from, the newest first."""
    if settings.resume == "none":
        return []
    return [path for _, path in listed(settings.checkpoint)] if settings.resume == "auto" else _named(settings.resume)


def _named(path: str) -> list[str]:
    """The checkpoint that the user named: a file, or a folder's, newest first."""
    if not os.path.isdir(path):
        return [path]
    paths = [found for _, found in listed(path)]
    if not paths:
        raise CheckpointError(f"--resume {path}: the folder has no checkpoint")
    return paths


def _newest(paths: list[str], settings: Settings, plan: Plan) -> Start:
    """The start from the first checkpoint that is whole and whose log has all rows up to it; else the first whole one.

    A log lacks rows if it could not be written, or if a process that resumed earlier has begun to retake those steps.
    """
    passed_over, starts = [], []
    for path in paths:
        try:
            state = read(path)
        except CheckpointError as error:
            passed_over.append(str(error))
            continue
        start = Start(checkpoint=path, step=state["progress"]["steps"], state=state)
        start, last = _with_log(replace(start, notes=_compare_plans(path, state, plan)), settings, plan)
        if last >= start.step:
            return replace(start, notes=(*passed_over, *start.notes))
        starts.append(start)
        passed_over.append(f"{path}: its log ends at step {last}")
    if not starts:
        if settings.resume == "auto":
            passed_over.append(f"No checkpoint in {settings.checkpoint} is intact; start from scratch with "
                               "--resume none --overwrite")
        raise CheckpointError("\n".join(passed_over))
    return replace(starts[0], notes=(*passed_over, *starts[0].notes))


def _record(plan: Plan) -> dict:
    return json.loads(json.dumps(plan.as_record({})))


def _changes(old: dict, new: dict) -> list[str]:
    """What differs between two parts of plans, in words."""
    old, new = flat(old), flat(new)
    return [f"{name} was {old.get(name, 'not set')}, is now {new.get(name, 'not set')}"
            for name in {**old, **new} if old.get(name) != new.get(name)]


def _compare_plans(path: str, state: dict, plan: Plan) -> tuple[str, ...]:
    """Raises PlanError where the checkpoint is of another problem; gives what else has changed as notes.

    The last evaluation is then repeated: other splits may count now.
    """
    old, new, progress = json.loads(state["plan"]), _record(plan), state["progress"]
    differ = _changes(old["problem"], new["problem"])
    if differ:
        raise PlanError(f"{path} is of another plan: {'; '.join(differ)}. {_move(old, new)}")
    if 0 < plan.budget_steps < progress["steps"]:
        raise PlanError(f"{path} is at step {progress['steps']}, beyond a budget of {plan.budget_steps} steps; "
                        "give a larger one")
    changed = _changes(old["measurement"], new["measurement"])
    if changed:
        progress["evaluated"], progress["measured"] = -1, {}
    moved = _changes({"workers": old["execution"]["workers"]}, {"workers": plan.workers})
    return tuple(changed + moved)


def _move(old: dict, new: dict) -> str:
    """What to type where the problem differs."""
    batch, steps = old["problem"]["global_batch"], old["problem"]["decay_steps"]
    if batch != new["problem"]["global_batch"]:
        return f"--global-batch {batch} resumes it at any number of workers; or choose another --checkpoint folder"
    if steps and new["problem"]["decay_steps"] and steps != new["problem"]["decay_steps"]:
        return f"The decay ends with the budget unless --set decay_steps={steps} keeps it; or choose another " \
               "--checkpoint folder"
    return "Leave these as they were, or choose another --checkpoint folder"


def _with_log(start: Start, settings: Settings, plan: Plan) -> tuple[Start, int]:
    """The start with the log that its checkpoint belongs to, and the last step there.

    With overwrite, a new log takes the place of another's, or of one that is not there: where the user says.
    """
    path, known = settings.log or start.state["log"]["path"], start.state["log"]["id"]
    try:
        with read_log(path) as log:
            if log.segments[0].log_id == known:
                return _after(start, log, plan), int(log.steps["step"].max()) if log.steps.rows else 0
            wrong = f"{path} is the log of another run than {start.checkpoint}"
    except LogError as error:
        wrong = f"{start.checkpoint} belongs to a log that cannot be read: {error}"
    if not settings.overwrite or not settings.log:      # a checkpoint does not say what is written over
        anew = "--overwrite" if settings.log else "--log FILE --overwrite"
        raise LogError(f"{wrong}. Name its log with --log, or begin a new one at step {start.step} with {anew}")
    return replace(start, log=path, notes=(*start.notes, f"a new log begins at step {start.step}")), start.step


def _after(start: Start, log: Log, plan: Plan) -> Start:
    """The start after what the log says of the run so far."""
    status, reason = Status(log.trials["status"][-1]), log.trials["stop_reason"][-1]
    old, new = json.loads(log.trials["plan"][-1])["measurement"], _record(plan)["measurement"]
    start = replace(start, log=log.path, log_continues=True, previous_end=reason or INTERRUPTED)
    if status == Status.COMPLETE and all(old[name] == new[name] for name in ENDS):
        return replace(start, ended=Stop(status, reason, ExitCode.DONE))
    if status == Status.INFEASIBLE:
        return replace(start, ended=Stop(status, reason, ExitCode.DIVERGED))
    return start


def _without_checkpoint(settings: Settings, plan: Plan) -> Start:
    """A new run; in the log of one that ended before its first checkpoint, where there is such a log."""
    if settings.log is None or settings.overwrite or not os.path.exists(settings.log):
        return Start()
    with read_log(settings.log) as log:
        if not log.trials.rows or json.loads(log.trials["plan"][-1])["problem"] != _record(plan)["problem"]:
            return Start()
        if log.steps.rows:
            raise LogError(f"{log.path} holds {log.steps.rows} steps of this run, but {settings.checkpoint} has no "
                           "checkpoint to resume from; name the right folder, or start from scratch with --overwrite")
        return Start(log=log.path, log_continues=True, previous_end=log.trials["stop_reason"][-1] or INTERRUPTED)
