"""Logs made in memory for tests of the analysis and the report: what log.reader.read_log gives, as plain arrays."""
import json
from types import SimpleNamespace

import numpy as np

from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter


PARTS = ("data_seconds", "compute_seconds", "communication_seconds")
SQNORMS = ("local_sqnorm", "reduced_sqnorm", "local_examples")


class MadeTable(dict):
    """Columns by name, with the row count beside."""

    specs = {}                  # which say nothing of its columns

    def __missing__(self, column):      # an optional one
        return np.full(self.rows, np.nan)

    @property
    def columns(self):
        return tuple(self)

    @property
    def rows(self):
        return len(next(iter(self.values()), ()))

    @property
    def name(self):
        return next((name for column, name in (("id", "trials"), ("examples", "evaluations"), ("lr", "steps"))
                     if column in self), "restarts")

    def read(self, name, first=0, stop=None):
        return self[name][first:stop]


def trial(id=1, steps=(0, 100, 200), error=(0.9, 0.5, 0.1), seconds=None, *, workers=1, batch=32, seed=0,
          status=Status.COMPLETE, target="val/error<0.2", step_seconds=(), eval_every=100, **changes):
    """One trial, evaluated after ``steps`` with ``error`` after ``seconds`` (0.01 a step unless given).

    changes  dataset, model, optimizer, keep_going, cores, local_workers, untimed_passes, train_examples, peak_lr,
             stop_reason, plan, worker_counts (one a restart), communication_share (of its steps; 0.1 is data), losses
             (of its steps, else 1), sqnorms (of its steps, three numbers each: SQNORMS; None: not measured), budget
             (in steps), train_tokens (of the set),
             problem (more of the plan's), asked (by the user), job (digests), sweep (the trial's place in a study),
             branch (its place in a run)"""
    plan = {
        "problem": {"workload": "made/net", "model_args": changes.get("model_args"), "global_batch": batch,
                    "train_examples": changes.get("train_examples", 1000), "seed": seed,
                    "peak_lr": changes.get("peak_lr", 0.1), **changes.get("problem", {})},
        "measurement": {"target": target, "keep_going": changes.get("keep_going", False), "eval_every": eval_every,
                        **({"budget_steps": changes["budget"]} if "budget" in changes else {}),
                        **({"train_tokens": changes["train_tokens"]} if "train_tokens" in changes else {})},
        "execution": {"workers": workers, "untimed_passes": changes.get("untimed_passes", 2),
                      "cores": changes.get("cores", 64), "local_workers": changes.get("local_workers", workers)},
        "asked": changes.get("asked", {}),
        **{part: changes[part] for part in ("job", "sweep", "branch") if part in changes},
    }
    row = {"id": id, "status": int(status), "stop_reason": changes.get("stop_reason", ""),
           "dataset": changes.get("dataset", "made"), "model": changes.get("model", "net"),
           "optimizer": changes.get("optimizer", "nesterov"), "global_batch": batch,
           "local_batch": max(1, batch // workers), "accumulation": 1, "ghost_batch": batch, "workers": workers,
           "seed": seed, "budget_steps": changes.get("budget", 1000), "plan": changes.get("plan", json.dumps(plan)),
           "metaparameters/learning_rate": changes.get("peak_lr", 0.1)}
    steps = np.asarray(steps, int)
    seconds = 0.01 * steps if seconds is None else np.asarray(seconds, float)
    return SimpleNamespace(row=row, step=steps, seconds=seconds, error=np.asarray(error, float),
                           step_seconds=np.asarray(step_seconds, float),
                           losses=changes.get("losses", ()),
                           communication_share=changes.get("communication_share"), sqnorms=changes.get("sqnorms"),
                           worker_counts=changes.get("worker_counts", (workers,)))


def log(*trials, path="made.h5", metric="val/error"):
    """A Log of these trials, its evaluations interleaved by step as several trials of one file would be."""
    rows = sorted(((s, t.row["id"], t.row["global_batch"] * s, w, e)
                   for t in trials for s, w, e in zip(t.step, t.seconds, t.error)))
    parted = any(t.communication_share is not None for t in trials)
    noisy = any(t.sqnorms is not None for t in trials)
    steps = [(t.row["id"], i + 1, t.losses[i] if len(t.losses) else 1.0, 0.1, s,
              *(_parts(s, t.communication_share) if parted else ()),
              *((t.sqnorms[i] if t.sqnorms and t.sqnorms[i] else (np.nan,) * 3) if noisy else ()))
             for t in trials for i, s in enumerate(t.step_seconds)]
    restarts = [(t.row["id"], 0, w, "here", "cpu", 0.0, "") for t in trials for w in t.worker_counts]
    return SimpleNamespace(
        path=path, attributes={"creator": "made", "commit": "0" * 7},
        trials=MadeTable({name: _column([t.row[name] for t in trials]) for name in trial().row}),
        restarts=_table(("trial", "first_step", "workers", "host", "device", "time", "previous_end"), restarts),
        evaluations=_table(("step", "trial", "examples", "train_seconds", metric), rows),
        steps=_table(("trial", "step", "loss", "lr", "step_seconds", *(PARTS if parted else ()),
                      *(SQNORMS if noisy else ())), steps))


def _parts(seconds, share):
    return (np.nan,) * 3 if share is None else (0.1 * seconds, (0.9 - share) * seconds, share * seconds)


def _table(names, rows):
    return MadeTable({name: _column([row[at] for row in rows]) for at, name in enumerate(names)})


def _column(values):
    return np.array(values, object if values and isinstance(values[0], str) else None)


def save(made, path):
    """The log as a file, and its path."""
    metrics = [name for name in made.evaluations.columns if "/" in name]
    writer = LogWriter(path, metrics=metrics, metaparameters=("learning_rate",), attributes={"commit": "0" * 7},
                       optional=[name for name in (*PARTS, *SQNORMS, "startup_seconds")
                                 if name in made.steps or name in made.restarts])
    for name in ("trials", "restarts", "evaluations", "steps"):
        table = getattr(made, name)
        for row in range(table.rows):
            writer.append(name, **{column: values[row] for column, values in table.items()})
    writer.finish()
    return str(path)


def study(seeds=3, unmet=True, **changes):
    """Trials such as people have: 1, 2, 4 and 8 workers at 32 examples each, with noise; {workers: log}.

    unmet  at 8 workers the last seed does not meet the target"""
    random = np.random.default_rng(7)
    return {workers: log(*[_realistic(random, workers, seed, unmet and workers == 8 and seed == seeds - 1, **changes)
                           for seed in range(seeds)], path=f"runs/w{workers}.h5") for workers in (1, 2, 4, 8)}


def _realistic(random, workers, seed, unmet, **changes):
    batch = 32 * workers
    every = int(80 * (1 + batch / 180) / workers) // 5 * 5                  # S = S_min (1 + B_crit / B)
    pace = 18 * every * np.exp(random.normal(0, 0.06))
    step = every * np.arange(40)
    error = (0.012 if not unmet else 0.021) + 0.88 * np.exp(-4.7 * (step / pace) ** 0.55)
    error[1:] *= np.exp(random.normal(0, 0.04, 39))
    count = int(np.argmax(error < 0.02)) + 1 if (error < 0.02).any() else 40
    seconds = step * batch / (4000 * workers ** 0.82) * np.exp(random.normal(0, 0.03))
    return trial(seed + 1, step[:count], error[:count], seconds[:count], workers=workers, batch=batch, seed=seed,
                 target="val/error<0.02", eval_every=every, dataset="mnist", model="simple_cnn", train_examples=55000,
                 cores=4, peak_lr=0.01 * workers, **changes)
