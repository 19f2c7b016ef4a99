"""Log files for tests, and a process that writes one until it is killed.

python -m tests.factories.log_files MODE LOG NOTES [LIMIT_BYTES]

The process notes in NOTES what it has done, each line once it is done. Step s of any trial has the loss 1 / s, so a row
can be told from a wrong one."""
import json
import os
import resource
import sys
import time

from hvdscale.errors import LogError
from hvdscale.log.schema import Status
from hvdscale.log.writer import LogWriter

METRICS = ("train/error", "val/error")
METAPARAMETERS = ("learning_rate", "momentum")
BATCH = 32


def open_log(path, **given):
    """A LogWriter with the columns of these tests."""
    return LogWriter(path, **{"metrics": METRICS, "metaparameters": METAPARAMETERS, "optional": ("data_seconds",),
                              **given})


def plan(seed=0):
    return json.dumps({"problem": {"workload": "digits/fc", "global_batch": BATCH, "seed": seed, "peak_lr": 0.1},
                       "measurement": {"budget_steps": 1000, "target": "val/error<0.01"},
                       "execution": {"workers": 2, "local_batch": 16, "accumulate": 1}, "asked": {"lr": 0.1}})


def begin(log, trial=0, first_step=0, previous_end=""):
    """The trial's row and its restart."""
    log.append("trials", id=trial, status=Status.RUNNING, stop_reason="", dataset="digits", model="fc", optimizer="sgd",
               global_batch=BATCH, local_batch=16, accumulation=1, ghost_batch=32, workers=2, seed=trial,
               budget_steps=1000, plan=plan(trial), **{"metaparameters/learning_rate": 0.1})
    log.append("restarts", trial=trial, first_step=first_step, workers=2, host="node1", device="cpu", time=1.7e9,
               previous_end=previous_end)


def step(log, number, trial=0, loss=None):
    log.append("steps", trial=trial, step=number, loss=1 / number if loss is None else loss, lr=0.1, step_seconds=0.01)


def evaluation(log, number, trial=0, error=None):
    log.append("evaluations", trial=trial, step=number, examples=number * BATCH, train_seconds=0.01 * number,
               **{"val/error": 0.5 / (1 + number) if error is None else error})


def write(log, steps, trial=0, first_step=0, every=10):
    """Steps first_step + 1 .. steps of a trial, and an evaluation at every tenth."""
    for number in range(first_step, steps + 1):
        if number > first_step:
            step(log, number, trial)
        if number % every == 0 and (number > first_step or number == 0):
            evaluation(log, number, trial)


def finished(path, steps=50, trials=1, **given):
    """A closed log of COMPLETE trials; gives its path as text."""
    log = open_log(path, **given)
    for trial in range(trials):
        begin(log, trial)
        write(log, steps, trial)
        log.set_status(trial, Status.COMPLETE, "budget reached")
    log.finish()
    return str(path)


def interrupted(path, steps=50, trials=1, **given):
    """A log as a killed process leaves it: copied while its writer was alive; gives its path as text."""
    live = f"{path}.live"
    log = open_log(live, **given)
    for trial in range(trials):
        begin(log, trial)
        for first in range(0, steps, 100):
            write(log, min(first + 100, steps), trial, first)
            log.flush()
    with open(live, "rb") as source, open(path, "wb") as copy:
        copy.write(source.read())
    log.abandon()
    os.unlink(live)
    return str(path)


def resumed(path):
    """The log of a run that was killed twice, in three segments; gives its path as text."""
    for first in (0, 20, 40):
        log = open_log(path, resume=True)
        begin(log, 0, first)
        write(log, first + 20, first_step=first)
        log.flush()
        log.abandon()
    return str(path)


def main(mode, path, notes, limit="0"):
    descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what, number):
        os.write(descriptor, f"{what} {number} {time.monotonic()}\n".encode())

    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
    note("ready", 0)
    try:
        MODES[mode](path, note)
    except LogError as error:
        print(f"LogError: {error}")


def write_steadily(path, note):
    """A row each millisecond or so, flushed by the clock alone."""
    log = open_log(path)
    begin(log)
    log.flush()
    for number in range(1, 100_000):
        step(log, number)
        note("appended", number)
        time.sleep(0.001)


def write_busily(path, note):
    """Rows as fast as they go, with a flush every 20, and trials that end and begin."""
    log = open_log(path)
    for trial in range(1000):
        begin(log, trial)
        for number in range(1, 401):
            step(log, number, trial)
            if number % 20 == 0:
                evaluation(log, number, trial)
                log.flush()
                note("flushed", 400 * trial + number)
        log.set_status(trial, Status.COMPLETE, "budget reached")


def create_again_and_again(path, note):
    """One log in the place of another, each with a row."""
    for number in range(1, 100_000):
        log = open_log(path, overwrite=True, attributes={"number": number})
        begin(log)
        log.flush()
        note("made", number)
        log.abandon()


def finish_again_and_again(path, note):
    """A log that is resumed, merged, resumed, merged; every other time two segments are left for the merge."""
    number = 0
    for turn in range(100_000):
        log = open_log(path, resume=True)
        begin(log, 0, number, "merged" if turn else "")
        for number in range(number + 1, number + 301):
            step(log, number)
        log.flush()
        note("flushed", number)
        if turn % 2:
            log.finish()
        else:
            log.abandon()


MODES = {"steady": write_steadily, "busy": write_busily, "create": create_again_and_again,
         "finish": finish_again_and_again}

if __name__ == "__main__":
    main(*sys.argv[1:])
