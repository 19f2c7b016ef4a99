"""hvdscale-train with toy/net, which notes the examples of every step it takes, and to which things happen.

HAPPENS=what:rank:step,...   each once in a job, before the rank's step, the rank being that of the time:
    kill, stop, hang, raise  the worker's end
    hosts                    hosts.next becomes hosts.txt
    kill-evaluating          the same as kill, in the step's evaluation; kill-loading: before any step
NEVER=host                   a worker that is started there ends at once
VISITS=file                  where visits are noted
SLOW=n                       steps are slow while there are not n workers
"""
import json
import os
import signal
import sys
import time
from dataclasses import replace

import hvdscale.workloads
from hvdscale.cli.train import main
from hvdscale.training.evaluate import Evaluator
from hvdscale.update.step import DataParallelStep
from tests.parallel import toy

MODELS = {"toy": ("net",)}
HAPPENS = [event.split(":") for event in os.environ.get("HAPPENS", "").split(",") if event]
now = {"step": None, "done": 0, "evaluates": False}


class Watched(toy.Split):
    """A split that notes what is taken, to a file that all processes append to."""

    def take(self, visits):
        if now["step"] is not None:
            row = dict(step=now["step"], time=time.time(), indices=visits.indices.tolist(),
                       epochs=visits.epochs.tolist())
            with open(os.environ.get("VISITS", "visits.jsonl"), "a") as file:
                file.write(json.dumps(row) + "\n")
        return super().take(visits)


class Evaluated(toy.Split):
    def take(self, visits):
        if now["evaluates"]:            # not where a digest of the split is made
            happen("kill-evaluating", now["done"])
        return super().take(visits)


def happen(kind, step):
    place = int(os.environ.get("HOROVOD_RANK", "0")), step
    for what, rank, at in HAPPENS:
        if what == kind and place == (int(rank), int(at)) and once(what + rank + at):
            if what.startswith("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if what == "hang":
                time.sleep(10000)
            if what == "raise":
                raise RuntimeError("the planted fault")
            if what == "hosts":
                os.replace("hosts.next", "hosts.txt")


def once(name):
    try:
        os.close(os.open(f"happened-{name}", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def step_taken(self, step, lr, votes, take_step=DataParallelStep.__call__):
    for what in ("kill", "stop", "hang", "raise", "hosts"):
        happen(what, step)
    if os.environ.get("SLOW") not in (None, str(self.workers.size)):
        time.sleep(0.15)
    now["step"] = step
    try:
        return take_step(self, step, lr, votes)
    finally:
        now["step"], now["done"] = None, step + 1


def evaluated(self, *given, evaluate=Evaluator.__call__):
    now["evaluates"] = True
    try:
        return evaluate(self, *given)
    finally:
        now["evaluates"] = False


def measured_before(self, step, measure=DataParallelStep._before):
    """What is computed once more for the gradient noise scale is no visit."""
    noted, now["step"] = now["step"], None
    measure(self, step)
    now["step"] = noted


def load(data_dir):
    happen("kill-loading", 0)
    data = toy.load_augmented()
    return replace(data, train=Watched(**vars(data.train)), val=Evaluated(**vars(data.val)),
                   test=Evaluated(**vars(data.test)))


def workload(dataset, model):
    return replace(toy.WORKLOAD, dataset=dataset, model=model, load=load)


if __name__ == "__main__":
    if os.environ.get("HOROVOD_HOSTNAME") and os.environ.get("HOROVOD_HOSTNAME") == os.environ.get("NEVER"):
        os._exit(5)
    DataParallelStep.__call__, DataParallelStep._before = step_taken, measured_before
    Evaluator.__call__ = evaluated
    hvdscale.workloads.DATASETS["toy"] = sys.modules[__name__]
    main()
