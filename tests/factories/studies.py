"""Studies made in memory for tests of what is said of them: trials as hvdscale-tune logs them, without any training."""
import math

from hvdscale.log.schema import Status
from hvdscale.plan.search_space import Parameter, draws
from tests.factories.logs import log, trial

SPACE = (Parameter("lr", "double", "log", 0.001, 1.0), Parameter("momentum", "double", "reverse_log", 0.9, 0.999))
TARGETS = ("val/error<0.2", "val/error<0.1")
EVERY, BUDGET = 100, 3000


def drawn(number, met=math.inf, *, batch=256, point=None, diverged=False, failed=False, pruned=None, repeat=0,
          space=SPACE, easier=None, **changes):
    """Draw ``number`` of a study to 0.1, which meets it at step ``met``, evaluated every EVERY steps up to BUDGET.

    met     inf: never; diverged, failed: at its third evaluation; pruned: stopped at that step
    easier  the step at which it meets 0.2, by default that at which it meets 0.1"""
    sweep = {"study": f"{changes.get('optimizer', 'nesterov')}-b{batch}", "draw": number, "repeat": repeat,
             "point": point or {"lr": 0.1, "momentum": 0.99}, "space": [one.record() for one in space], "trials": 6,
             "max_draws": 18, "objective": "steps", "targets": list(TARGETS), "prune_keep": 2, "seed": 0,
             **changes.pop("sweep", {})}
    end = 2 * EVERY if diverged or failed else min(met, pruned or BUDGET)
    steps = list(range(0, end + 1, EVERY))
    errors = [0.05 if step >= met else 0.15 if step >= (easier or met) else 0.5 for step in steps]
    status, reason = ((Status.INFEASIBLE, f"diverged: the loss is nan at step {end}") if diverged else
                      (Status.INCOMPLETE, "failed: no such layer") if failed else
                      (Status.INCOMPLETE, f"pruned after step {pruned}") if pruned and met > pruned else
                      (Status.COMPLETE, ""))
    tuned = {name: value for name, value in sweep["point"].items() if "." not in name and name != "lr"}
    return trial(number + 100000 * repeat, steps, errors, batch=batch, seed=number + 100000 * repeat, status=status,
                 stop_reason=reason, target=sweep["targets"][-1] if sweep["targets"] else None, sweep=sweep,
                 budget=BUDGET, peak_lr=sweep["point"].get("lr", 0.1), problem=tuned | changes.pop("problem", {}),
                 **changes)


def studied(*trials, path="nesterov-b256.h5"):
    """The log of these draws."""
    return log(*trials, path=path)


def realistic(batch, best_lr, fewest, count=16, wanted=12, keep=5, seed=0, space=SPACE, repeats=0, **changes):
    """A study whose draws need the more steps the further their rate and momentum lie from the best, as it would go in
    sequence: beyond 8 times the best effective rate they diverge, and past the ``keep``-th best they are pruned."""
    made, met, feasible = [], [], 0
    for number, point in enumerate(draws(space, count, seed)):
        effective = point["lr"] / (1 - point["momentum"]) / (best_lr / 0.03)
        steps = fewest * math.exp(0.7 * math.log(effective) ** 2)
        steps = math.ceil(steps / EVERY) * EVERY if steps < BUDGET else math.inf
        known = {"trials": wanted, "max_draws": 3 * wanted, "prune_keep": keep}
        limit = sorted(met)[keep - 1] if keep and len(met) >= keep else BUDGET
        diverged = effective > 8
        made.append(drawn(number, steps, batch=batch, point=point, diverged=diverged, space=space, sweep=known,
                          pruned=limit if limit < BUDGET else None, **changes))
        met += [steps] if steps <= limit and not diverged else []
        feasible += not diverged
        if feasible == wanted:
            break
    winner = min((one for one in made if one.row["status"] == Status.COMPLETE), key=lambda one: one.step[-1])
    for repeat in range(1, repeats + 1):
        sweep = winner.row["id"]
        point = draws(space, sweep + 1, seed)[-1]
        made.append(drawn(sweep, int(winner.step[-1]) + EVERY * repeat, batch=batch, point=point, repeat=repeat,
                          space=space, sweep=known, **changes))
    return made
