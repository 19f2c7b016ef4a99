"""Logs of groups as a farm leaves them, and what is compared of two logs of a study."""
import json
import os
from fnmatch import fnmatch

import numpy as np

from hvdscale.log.check import check
from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter

# what depends on where and when trials ran; the plan is looked at apart
BY_PLACE = ("trials/source", "trials/source_trial", "trials/plan", "restarts/host", "restarts/device", "restarts/time",
            "*_seconds")


BATCH, BUDGET, EVAL_EVERY = 32, 50, 10


def group_log(out, name, ran, closed=True, **given):
    """OUT/logs/NAME.h5, of a group that ran trials one after another; gives its LogWriter.

    ran     (id in this log, draw, first step, last step) of each; what a row says depends on draw and step alone, but
            for its seconds
    closed  False: the group lives and goes on"""
    log = LogWriter(os.path.join(out, "logs", f"{name}.h5"), **{
        "metrics": ("val/error",), "metaparameters": ("learning_rate",), "attributes": {"commit": name}, **given})
    for id, draw, first_step, last_step in ran:
        _begin(log, id, draw, first_step, name)
        for step in range(first_step, last_step + 1):
            if step > first_step:
                log.append("steps", trial=id, step=step, loss=loss(draw, step), lr=0.1, step_seconds=1.0 + id)
            if step % EVAL_EVERY == 0 and (step > first_step or step == 0):
                log.append("evaluations", trial=id, step=step, examples=step * BATCH, train_seconds=step * 0.01,
                           **{"val/error": error(draw, step)})
        log.set_status(id, Status.COMPLETE, "budget reached")
    if closed:
        log.finish()
    return log


def loss(draw, step):
    return draw + 1 / step


def error(draw, step):
    return 1 / (2 + step + draw)


def _begin(log, id, draw, first_step, host):
    plan = {"problem": {"workload": "digits/fc", "global_batch": BATCH, "seed": draw, "peak_lr": 0.1},
            "measurement": {"budget_steps": BUDGET, "target": "val/error<0.04", "eval_every": EVAL_EVERY},
            "execution": {"workers": 1, "local_batch": BATCH, "accumulate": 1}, "asked": {"log": host},
            "sweep": {"study": "sgd-b32", "draw": draw, "repeat": 0, "point": {"lr": 0.1, "decay": "linear"},
                      "space": [], "trials": 2, "max_draws": 6, "objective": "steps", "better": "min",
                      "targets": ["val/error<0.04"], "prune_keep": 5, "seed": 0}}
    log.append("trials", id=id, status=Status.RUNNING, stop_reason="", dataset="digits", model="fc", optimizer="sgd",
               global_batch=BATCH, local_batch=BATCH, accumulation=1, ghost_batch=BATCH, workers=1, seed=draw,
               budget_steps=BUDGET, plan=json.dumps(plan), **{"metaparameters/learning_rate": 0.1})
    log.append("restarts", trial=id, first_step=first_step, workers=1, host=host, device="cpu", time=1.7e9 + id,
               previous_end="killed" if first_step else "")


def assert_same_study(path, other, but_for=(), rtol=0.0):
    """Two logs of a study that pass their check and say the same, wherever and whenever the trials ran.

    but_for  columns that need not agree, as patterns of table/column: "restarts/*" where one was interrupted,
             "trials/workers" where the groups differ in size
    rtol     the relative difference that measurements may have; 0: none, to the last bit"""
    one, two = (_compared(log, (*BY_PLACE, *but_for)) for log in (path, other))
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert len(values) == len(two[name]), name
        if values.dtype.kind == "f":
            np.testing.assert_allclose(values, two[name], rtol, err_msg=name)
        else:
            np.testing.assert_array_equal(values, two[name], err_msg=name)


def _compared(path, but_for):
    """Columns by table/column without those of nothing but NaN, which another log may lack; and the plans, parsed,
    without the part that must change no update."""
    log = check(path)
    columns = {f"{table.name}/{name}": table[name] for table in log.tables for name in table}
    columns = {name: values for name, values in columns.items() if not any(fnmatch(name, part) for part in but_for)
               and not (values.dtype.kind == "f" and np.isnan(values).all())}
    plans = [json.loads(text) for text in log.trials["plan"]]
    columns["plans"] = np.array([json.dumps({part: plan[part] for part in sorted(plan) if part not in (
        "execution", "asked")}, sort_keys=True) for plan in plans], object)
    return columns
