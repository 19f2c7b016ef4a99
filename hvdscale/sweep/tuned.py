"""tuned.toml: the best point of each global batch, with its evidence, for hvdscale-train --lr-rule tuned.

    write_tuned("runs/sweep/tuned.toml", searches_of(trials))

Of each batch it has [global_batch.256] as ``plan.metaparameters`` reads it, with what is TUNABLE of the best trial,
searched or set; and [evidence.256]: trial, steps, interval and place in the space.
"""

import os
from collections.abc import Iterable, Mapping, Sequence

from ..analysis.search import Search
from ..errors import LogError
from ..formatting.toml import escape, key_as_toml, value_as_toml
from ..plan.batch_schedule import BatchSchedule
from ..plan.metaparameters import TUNABLE
from ..plan.scaling import SCALED_BETAS
from ..plan.schedule import FALLING
from ..plan.search_space import STEPS_TO_TARGET
from ..plan.settings import key_of, stored_names
from ..system.outputs import Kind, replace_own

# further keys that change updates; they belong to the problem, so tables of tuned values may not set them
OF_PROBLEM = ("last_batch", "precision", "compression", "loss_scale", "group_by_group", "unused_parameters",
              "init_from", "train_subset", "data_args", "batch_schedule", "batch_schedule_lr")
TUNED = Kind("a file of hvdscale-tune", lambda head: head.startswith(b"# Metaparameters tuned"))
NOTES = {
    "lr": "the peak rate",
    **{name: unit for key in sorted(TUNABLE) for name, unit in stored_names(key).items() if unit},
    "steps": "done at the first evaluation that met the target",
    "steps_before": "at the evaluation before, which did not", "value": "the best at any evaluation",
    "at_step": "steps done then", "trial": "its number in the log", "diverged_share": "of the draws",
    "repeat_steps": "steps of the same point under other seeds; inf: not met, nan: diverged",
    "repeat_values": "of the same point under other seeds",
    "position": "between the ends of the space, 0 and 1, in the scale of the search; nan: no order",
}


def write_tuned(path: str, searches: Sequence[Search]) -> None:
    """Write the file atomically; of several optimizers at a global batch the best counts. Raises LogError."""
    replace_own(path, tuned_toml(searches, os.path.dirname(path)), LogError)


def tuned_toml(searches: Sequence[Search], folder: str = "") -> str:
    """The file's text, with logs named relative to ``folder``, the file's folder."""
    by_batch: dict[int, list[Search]] = {}
    for search in searches:
        problems = (draw.trial.plan["problem"] for draw in search.draws if draw.trial)
        batch = BatchSchedule.of_problem(next(problems, {}), search.global_batch).first     # by which it is looked up
        by_batch.setdefault(batch, []).append(search)
    plans = [draw.trial.plan for search in searches for draw in search.draws if draw.trial]
    names = {plan["problem"]["workload"] for plan in plans}
    if len(names) > 1:
        raise ValueError(f"searches of several workloads: {', '.join(sorted(names))}")
    entries = [_entry(batch, by_batch[batch], folder) for batch in sorted(by_batch)]
    usage, asked = "# Metaparameters tuned per global batch by hvdscale-tune.", plans[0]["asked"] if plans else {}
    if "workload" in asked:
        usage += (f" To use them, with a budget and a target:\n# hvdscale-train {escape(asked['workload'])} "
                  "--global-batch N --lr-rule tuned --metaparameters FILE")
    head = [f"{usage}\n", *(f"workload = {value_as_toml(name)}\n" for name in names)]
    if not any(_best(found) for found in by_batch.values()):
        entries.append("[global_batch]\n")
    return "\n".join([*head, *entries])


def tuned_keys(search: Search) -> dict:
    """The best trial's TUNABLE values, as keys of hvdscale-train, except the workload's defaults."""
    plan = search.best.trial.plan
    asked, problem = plan["asked"], plan["problem"]
    keys = {name: asked[name] for name in sorted(asked) if key_of(name) in TUNABLE}
    keys["lr"] = problem["peak_lr"]
    if "adamw_lr" in keys:
        keys["adamw_lr"] = problem["adamw_lr"]
    if problem["lr_rule"] in SCALED_BETAS:      # the rule tuned scales nothing
        keys |= {name: problem[name] for name in (*SCALED_BETAS[problem["lr_rule"]], "epsilon")}
    if problem["decay"] in FALLING and "decay_end" not in map(key_of, asked):
        keys["decay_steps"] = problem["decay_steps"]    # derived from the budget, which may change
    if problem.get("plateau"):
        keys["decay_metric"] = problem["plateau"]["metric"]     # by default the target's, which may change
    first = [name for name in ("optimizer", "lr") if name in keys]
    return {name: keys[name] for name in dict.fromkeys((*first, *keys))}


def _best(searches):
    found = [search for search in searches if search.best]
    return min(found, key=lambda search: -search.best.value if search.maximizes else search.best.value, default=None)


def _entry(batch, searches, folder):
    search = _best(searches)
    if search is None:
        goals = [f"met {one.target}" if one.objective == STEPS_TO_TARGET else f"has a {one.objective}"
                 for one in searches]
        return "".join(f"# [global_batch.{batch}]: {escape(one.study)}: {len(one.feasible)} feasible of "
                       f"{len(one.draws)} drawn, none of which {escape(goal)}\n"
                       for one, goal in zip(searches, goals))
    asked = search.best.trial.plan["asked"]
    others = {name: asked[name] for key in OF_PROBLEM for name in asked if key_of(name) == key}
    comment = [f"# its trials also had, which must be set again: {value_as_toml(others)[1:-1]}"] if others else []
    return "\n".join([f"[global_batch.{batch}]", *comment, *_lines(tuned_keys(search)), "", f"[evidence.{batch}]",
                      *_lines(_evidence(search, folder)), ""])


def _evidence(search, folder):
    best = search.best
    evidence = {"study": search.study, "log": os.path.relpath(best.trial.log, folder or "."), "trial": best.trial.id}
    if search.objective == STEPS_TO_TARGET:
        evidence |= {"target": str(search.target), "steps": int(best.value)}
        evidence |= {"steps_before": int(best.before)} if best.before >= 0 else {}
    else:
        evidence |= {"objective": search.objective, "value": best.value, "at_step": int(best.step)}
    if search.repeats:
        repeats = "repeat_steps" if search.objective == STEPS_TO_TARGET else "repeat_values"
        evidence[repeats] = list(search.repeat_values)
    return evidence | {
        "feasible": len(search.feasible), "draws": len(search.draws), "diverged_share": search.diverged_share,
        "finished": search.done, "position": {bound.parameter.name: bound.position for bound in search.bounds},
        "near_bounds": [bound.parameter.name for bound in search.bounds if bound.near]}


def _lines(table: Mapping) -> Iterable[str]:
    for name, value in table.items():
        line = f"{key_as_toml(name)} = {value_as_toml(value)}"
        yield f"{line:<30}  # {NOTES[name]}" if name in NOTES else line
