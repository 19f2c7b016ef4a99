"""hvdscale-train with one more workload, toy/net, that is killed as KILL says: SIGNAL RANK WHERE NUMBER. Those that
torchrun starts again live.

RANK        a rank, or all
WHERE       loading: the examples, whatever the number;  step: as the step of that number begins;
            seconds: so long after the first step
            write, rename, removal: while the checkpoint of that number (from 0) is being written, before it is renamed,
            and after that, before old ones are removed
"""
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import torch

import hvdscale.workloads
from hvdscale.cli.train import main
from hvdscale.training import checkpoint
from hvdscale.update.step import DataParallelStep
from tests.parallel import toy
from tests.parallel.toy_command import my_rank

MODELS = ("net",)
take_step, save, replace_file, write = DataParallelStep.__call__, torch.save, os.replace, checkpoint.write


def workload(dataset, model):
    return replace(toy.WORKLOAD, load=toy.load_augmented)


def plant(number, where, when):
    """Have this process send itself the signal."""
    written, timers = [], []

    def die():
        os.kill(os.getpid(), number)

    def step(self, at, *given):
        if where == "step" and at == int(when):
            die()
        if where == "seconds" and not timers:
            timers.append(threading.Timer(float(when), die))
            timers[0].start()
        return take_step(self, at, *given)

    def half_saved(state, file, **options):
        if not options and len(written) == int(when):           # torch pickles tensors by it, too
            if number == signal.SIGKILL:                        # of the others the write goes on to its end
                file.write(b"PK\3\4 half a checkpoint")
                file.flush()
            die()
        save(state, file, **options)

    def renamed(source, target):
        if str(target).endswith(".pt") and len(written) == int(when):
            die()
        replace_file(source, target)

    def whole(path, state):
        write(path, state)
        written.append(path)
        if where == "removal" and len(written) == int(when) + 1:
            die()

    if where == "loading":
        toy.load_augmented = lambda data_dir: die() or time.sleep(60)
    DataParallelStep.__call__ = step
    checkpoint.write = whole
    if where == "write":
        torch.save = half_saved
    if where == "rename":
        os.replace = renamed


if __name__ == "__main__":
    hvdscale.workloads.DATASETS["toy"] = sys.modules[__name__]
    if os.environ.get("KILL") and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        name, rank, where, when = os.environ["KILL"].split()
        if rank in ("all", str(my_rank())):
            plant(signal.Signals[name], where, when)
    main()
