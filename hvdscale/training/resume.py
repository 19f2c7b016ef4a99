"""Find what a run resumes from: a checkpoint of the same problem, and its log."""

import json
import os
from dataclasses import replace

from ..errors import CheckpointError, ExitCode, LogError, PlanError, UsageError
from ..log.merge import is_finished
from ..log.reader import Log, read_log
from ..log.schema import INTERRUPTED, Status
from ..plan.batch_schedule import BatchSchedule
from ..plan.job import changes_of, have_same_parameters, note_version, refuse_changes
from ..plan.plan import Plan, differences
from ..plan.settings import Settings
from ..workers.group import Workers
from ..workers.launch import under_torchrun
from .checkpoint import final_outcome, listed, read, read_plan
from .snapshot import Start, Stop, share

# measurement fields that determine when the run ends
ENDS = ("budget_steps", "budget_seconds", "target", "keep_going", "eval_every", "eval_every_examples")
# those that determine the updates of a plateau decay, which follows the evaluations
FOLLOWED = ("eval_every", "eval_every_examples", "train_eval_examples")
OTHER = "or choose another --checkpoint folder"
INSTEAD = "Put it back, or choose another --checkpoint folder"


def find_start(settings: Settings, plan: Plan, workers: Workers) -> Start:
    """Where the run starts, found by rank 0; raises on all ranks if checkpoint, plan and log do not fit together."""
    found = Start()
    with workers.together("the checkpoint to resume from"):
        if workers.rank == 0 and settings.checkpoint is not None:
            found = _find(settings, plan)
    return shared(found, workers)


def newest_plan(settings: Settings, workers: Workers) -> dict | None:
    """The plan of the checkpoint that a run resumes from; None without a readable one; a collective."""
    plan = None
    with workers.together("the checkpoint to resume from"):
        if workers.rank == 0 and settings.checkpoint is not None:
            plan = next(filter(None, map(read_plan, _candidates(settings))), None)
    return workers.gather(plan, "plan of the checkpoint")[0]


def ended_for_good(layers: list[dict], workers: Workers) -> str | None:
    """How a run ended for good if torchrun has started its workers again nevertheless; a collective under torchrun."""
    if not under_torchrun():
        return None
    with workers.together("the settings"):
        folder = Settings.build({}, *layers).checkpoint
    end = final_outcome(folder) if folder is not None and workers.rank == 0 else None
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))      # of this host's workers, after a failure
    counts, ends = zip(*workers.gather((restarts, end), "outcome"))
    return ends[0] if any(counts) else None


def kept_batch(settings: Settings, workers: Workers) -> dict | None:
    """The batch of the checkpoint that a job of ``torchrun --max-restarts`` resumes from with other workers; else None.
    Keys of the settings, for ``with_batch``; a collective under torchrun."""
    may_restart = under_torchrun() and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    if not may_restart or settings.checkpoint is None:
        return None
    plan = newest_plan(settings, workers)
    if plan is None or plan["execution"]["workers"] == workers.size:
        return None
    batch, ghost_batch = plan["problem"]["global_batch"], plan["problem"]["ghost_batch"]
    most = max(plan["execution"]["local_batch"], min(ghost_batch, batch))       # a shared ghost group may be one's own
    batches = BatchSchedule.of_problem(plan["problem"], batch)
    return {**batches.keys(), "max_local_batch": most, "ghost_batch": ghost_batch}


def with_batch(settings: Settings, batch: dict) -> Settings:
    """The settings with the batch of the job's first start, at any number of workers."""
    defaults, *layers = settings.layers
    layers = [{name: value for name, value in layer.items() if name != "accumulate"} for layer in layers]
    return Settings.build(defaults, *layers, batch)


def shared(found: Start, workers: Workers) -> Start:
    start = workers.gather(replace(found, state=None), "start")[0]
    start.state = share(found.state, workers)
    if start.state is not None:
        generators = start.state["random"]          # one per rank; at another size, ranks keep their own
        start.state["random"] = generators[workers.rank] if len(generators) == workers.size else None
    return start


def _find(settings: Settings, plan: Plan) -> Start:
    folder, there = settings.checkpoint, listed(settings.checkpoint)
    if settings.resume == "none":
        if there and not settings.overwrite:
            raise CheckpointError(f"{folder} has checkpoints, the newest of step {there[0][0]}: --resume auto resumes "
                                  "from it, --overwrite starts from scratch and removes them")
        return Start()
    if not (paths := _candidates(settings)):
        return _without_checkpoint(settings, plan)
    start = _newest(paths, settings, plan)
    in_folder = any(os.path.samefile(start.checkpoint, path) for _, path in there)
    if there and not in_folder and not settings.overwrite:
        raise CheckpointError(f"{folder} has other checkpoints than {start.checkpoint}: choose another "
                              "--checkpoint folder, or replace them with --overwrite")
    return replace(start, in_folder=in_folder)


def _candidates(settings: Settings) -> list[str]:
    if settings.resume == "none":
        return []
    if settings.resume == "auto":
        return [path for _, path in listed(settings.checkpoint)]
    if not os.path.isdir(settings.resume):
        return [settings.resume]
    if not (paths := [found for _, found in listed(settings.resume)]):
        raise CheckpointError(f"--resume {settings.resume}: the folder has no checkpoint")
    return paths


def _newest(paths: list[str], settings: Settings, plan: Plan) -> Start:
    """The start from the first intact checkpoint whose log has all rows up to it; else from the first intact one. A log
    lacks rows if it could not be written, or if a process that resumed earlier began to retake those steps."""
    passed_over, starts = [], []
    for path in paths:
        try:
            state = read(path)
        except CheckpointError as error:
            passed_over.append(str(error))
            continue
        accepted, notes = _compare(path, state, plan, settings)
        start, last = _with_log(Start(checkpoint=path, step=state["progress"]["steps"], state=state, accepted=accepted,
                                      notes=tuple(notes)), settings, plan)
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


def _compare(path: str, state: dict, plan: Plan, settings: Settings) -> tuple[dict[str, str], list[str]]:
    """(earlier jobs that count as this one, notes on other changes); raises UsageError if the checkpoint is of another
    job, PlanError if it is of another problem."""
    old, new, progress = json.loads(state["plan"]), _record(plan), state["progress"]
    then, differ = old.get("job") or {}, differences(old["problem"], new["problem"])
    if differ:                  # an error, too: model and data may differ by that
        then = {part: then[part] for part in ("source", "defaults") if part in then}
    edits = changes_of(then, plan.job)
    if not have_same_parameters(then, plan.job):
        raise UsageError(f"{path} does not fit the model: {'; '.join(edits)}. {INSTEAD}")
    accepted = refuse_changes(then, plan.job, settings.accept_changes, path, INSTEAD)

    if plan.plateau:
        differ |= differences(*({name: each["measurement"].get(name) for name in FOLLOWED} for each in (old, new)))
    if differ:
        raise PlanError(f"{path} belongs to another plan: {'; '.join(differ.values())}. {_suggest(old, new)}")
    if 0 < plan.budget_steps < progress["steps"]:
        raise PlanError(f"{path} is at step {progress['steps']}, beyond the budget of {plan.budget_steps} steps; "
                        "give a larger budget")
    changed = differences(old["measurement"], new["measurement"])
    if changed:                 # other splits may count now, so the last evaluation is repeated
        progress["evaluated"], progress["measured"] = -1, {}
    changed |= differences({"workers": old["execution"]["workers"]}, {"workers": plan.workers})
    return accepted, [*changed.values(), *note_version(then, plan.job), *map("accepted: {}".format, edits)]


def _suggest(old: dict, new: dict) -> str:
    batch, steps = old["problem"]["global_batch"], old["problem"]["decay_steps"]
    if old["problem"].get("batch_schedule") != new["problem"]["batch_schedule"]:
        said = BatchSchedule.of_problem(old["problem"], batch).keys()
        keys = " ".join(f"--set {name}={value}" for name, value in said.items())
        return f"{keys} resumes it at any number of workers; {OTHER}"
    if batch != new["problem"]["global_batch"]:
        return f"--global-batch {batch} resumes it at any number of workers; {OTHER}"
    if steps and new["problem"]["decay_steps"] and steps != new["problem"]["decay_steps"]:
        return f"The decay ends with the budget unless --set decay_steps={steps} keeps it; {OTHER}"
    return f"Leave these as they were, {OTHER}"


def _with_log(start: Start, settings: Settings, plan: Plan) -> tuple[Start, int]:
    """The start with its checkpoint's log, and the last step there; with overwrite, a new log at the user's path."""
    path, known = settings.log or start.state["log"]["path"], start.state["log"]["id"]
    try:
        with read_log(path) as log:
            if log.segments[0].log_id == known:
                last = int(log.steps["step"].max()) if log.steps.rows else 0
                return _after(start, log, plan, last), last
            wrong = f"{path} is not the log of {start.checkpoint}, but of another run"
    except LogError as error:
        wrong = f"{start.checkpoint} belongs to a log that cannot be read: {error}"
    if not settings.overwrite or not settings.log:      # a path in a checkpoint is no permission to overwrite
        options = "--overwrite" if settings.log else "--log FILE --overwrite"
        raise LogError(f"{wrong}. Name its log with --log, or start a new one at step {start.step} with {options}")
    return replace(start, log=path, notes=(*start.notes, f"a new log starts at step {start.step}")), start.step


def _after(start: Start, log: Log, plan: Plan, last: int) -> Start:
    """The start, updated with how the run has ended so far according to its log, whose last step is ``last``. A run has
    ended once its log is finished and its last weights are in the checkpoint; else the end is redone."""
    status, reason = Status(log.trials["status"][-1]), log.trials["stop_reason"][-1]
    old, new = json.loads(log.trials["plan"][-1])["measurement"], _record(plan)["measurement"]
    start = replace(start, log=log.path, log_continues=True, previous_end=reason or INTERRUPTED)
    complete = status == Status.COMPLETE and all(old.get(name) == new[name] for name in ENDS)
    if complete and start.step < last:
        return replace(start, notes=(*start.notes, f"the run had ended at step {last}, but without a checkpoint of "
                                     f"its last weights; the steps after {start.step} are taken again"))
    if not (complete or status == Status.INFEASIBLE) or not is_finished(log.path):
        return start
    return replace(start, ended=Stop(status, reason, ExitCode.DONE if complete else ExitCode.DIVERGED))


def _without_checkpoint(settings: Settings, plan: Plan) -> Start:
    """A new run; it continues the log of a run that ended before its first checkpoint, if there is one."""
    if settings.log is None or settings.overwrite or not os.path.exists(settings.log):
        return Start()
    with read_log(settings.log) as log:
        if not log.trials.rows:             # killed before its first row
            return Start(log=log.path, log_continues=True, previous_end=INTERRUPTED)
        if json.loads(log.trials["plan"][-1])["problem"] != _record(plan)["problem"]:
            return Start()
        if log.steps.rows:
            raise LogError(f"{log.path} holds {log.steps.rows} steps of this run, but {settings.checkpoint} has no "
                           "checkpoint to resume from; name the right folder, or start from scratch with --overwrite")
        return Start(log=log.path, log_continues=True, previous_end=log.trials["stop_reason"][-1] or INTERRUPTED)
