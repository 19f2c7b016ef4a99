"""How v1.h5, the log kept of schema version 1, was written: digits/fc at 1, 2 and 4 workers, from formulas alone.

    python -m tests.golden.make_v1 FILE

The kept file is never written anew: that it can still be read is what it is for.
"""
import json
import math
import sys

from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter

LOCAL_BATCH, EVAL_EVERY, BUDGET, TRAIN_EXAMPLES = 16, 20, 300, 1197
TARGET, FLOOR, START = 0.05, 0.03, 0.9
METRICS = tuple(f"{split}/{metric}" for split in ("train", "val", "test") for metric in ("cross_entropy", "error"))
# trial: workers, seed, steps at which its error meets the target (beyond the budget: never; None: it diverges)
TRIALS = {0: (1, 0, 230), 1: (1, 1, 250), 2: (2, 0, 130), 3: (2, 1, 150), 4: (4, 0, 90), 5: (4, 1, 390),
          6: (4, 2, None)}


def plan_of(workers, seed):
    """The plan in the layout of version 1."""
    return {
        "problem": {
            "workload": "digits/fc", "dataset": "digits", "model": "fc", "model_args": {},
            "train_examples": TRAIN_EXAMPLES, "global_batch": workers * LOCAL_BATCH, "ghost_batch": 16,
            "last_batch": "carry", "seed": seed, "precision": "fp32", "optimizer": "momentum", "optimizer_args": {},
            "momentum": 0.9, "weight_decay": 0.0, "label_smoothing": 0.0, "base_lr": 0.02, "base_batch": 16,
            "lr_rule": "linear", "lr_factor": float(workers), "peak_lr": 0.02 * workers, "start_lr": 0.02,
            "warmup": "gradual" if workers > 1 else "none", "warmup_steps": warmup(workers), "decay": "constant",
            "decay_steps": 0, "end_lr_factor": 0.0},
        "measurement": {
            "budget_steps": BUDGET, "budget_seconds": None, "target": "val/error<0.05", "keep_going": False,
            "eval_every": EVAL_EVERY, "eval_batch": 256, "train_eval_examples": 300},
        "execution": {
            "workers": workers, "local_workers": workers, "cores": 8, "local_batch": LOCAL_BATCH, "accumulate": 1,
            "device": "cpu", "threads": 1, "untimed_passes": 3},
        "asked": {"workload": "digits/fc", "seed": seed},
    }


def warmup(workers):
    return 0 if workers == 1 else 20


def step_seconds(workers, step):
    """A step takes longer on more workers, and every tenth a little longer."""
    return 0.004 + 0.0005 * math.log2(workers) + (0.001 if step % 10 == 0 else 0.0)


def lr_at(workers, step):
    """Linear from 0.02 to its peak over the warmup."""
    peak = 0.02 * workers
    return peak if step > warmup(workers) else 0.02 + (peak - 0.02) * step / warmup(workers)


def error_at(met, step):
    """Falls from 0.9 towards 0.03, and reaches 0.05 at step ``met``."""
    return FLOOR + (START - FLOOR) * math.exp(-step / met * math.log((START - FLOOR) / (TARGET - FLOOR) * 1.0001))


def evaluation(met, step, diverged):
    values = {}
    for split, factor in (("train", 0.5), ("val", 1.0), ("test", 1.1)):
        error = math.nan if diverged else factor * error_at(met or 200, step)
        values[f"{split}/error"], values[f"{split}/cross_entropy"] = round(error, 4), round(2.5 * error, 4)
    return values


def write_trial(log, trial):
    workers, seed, met = TRIALS[trial]
    batch, plan = workers * LOCAL_BATCH, plan_of(workers, seed)
    problem = plan["problem"]
    log.append("trials", id=trial, status=Status.RUNNING, stop_reason="", dataset="digits", model="fc",
               optimizer="momentum", global_batch=batch, local_batch=LOCAL_BATCH, accumulation=1, ghost_batch=16,
               workers=workers, seed=seed, budget_steps=BUDGET, plan=json.dumps(plan),
               **{"metaparameters/learning_rate": problem["peak_lr"], "metaparameters/momentum": 0.9,
                  "metaparameters/weight_decay": 0.0, "metaparameters/label_smoothing": 0.0,
                  "metaparameters/warmup_steps": problem["warmup_steps"]})
    log.append("restarts", trial=trial, first_step=0, workers=workers, host="node1", device="cpu",
               time=1.7e9 + 100 * trial, previous_end="")
    if trial == 1:
        log.append("restarts", trial=trial, first_step=100, workers=workers, host="node2", device="cpu",
                   time=1.7e9 + 150, previous_end="killed")
    seconds, step = 0.0, 0
    while True:
        diverged = met is None and step >= 40
        if step % EVAL_EVERY == 0:
            values = evaluation(met, step, diverged)
            log.append("evaluations", trial=trial, step=step, examples=step * batch, train_seconds=seconds, **values)
            if diverged or values["val/error"] < TARGET or step == BUDGET:
                break
        step += 1
        took = step_seconds(workers, step)
        seconds += took
        log.append("steps", trial=trial, step=step, loss=round(2.5 * error_at(met or 200, step), 2),
                   lr=lr_at(workers, step), step_seconds=took, data_seconds=0.0005, compute_seconds=took - 0.001,
                   communication_seconds=0.0005)
    if diverged:
        log.set_status(trial, Status.INFEASIBLE, f"the loss is nan at step {step}")
    elif values["val/error"] < TARGET:
        log.set_status(trial, Status.COMPLETE, f"target val/error<0.05 met at step {step}")
    else:
        log.set_status(trial, Status.COMPLETE, f"budget of {BUDGET} steps reached")


def main(path):
    log = LogWriter(
        path, metrics=METRICS, optional=("data_seconds", "compute_seconds", "communication_seconds"),
        metaparameters=("learning_rate", "momentum", "weight_decay", "label_smoothing", "warmup_steps", "decay_steps",
                        "end_lr_factor"),
        attributes={"id": "golden-v1", "creator": "hvdscale 0.1.0", "host": "node1",
                    "commit": "0123456789abcdef0123456789abcdef01234567",
                    "versions": {"python": "3.11.7", "numpy": "2.4.6", "h5py": "3.16.0", "hdf5": "2.0.0",
                                 "torch": "2.13.0", "horovod": "0.28.1"}})
    for trial in TRIALS:
        write_trial(log, trial)
    log.finish()


if __name__ == "__main__":
    main(sys.argv[1])
