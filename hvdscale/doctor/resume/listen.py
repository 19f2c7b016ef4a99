"""What a run that is stopped, or started again, leaves: its checkpoints, what each update begins from, and its end."""

import faulthandler
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from ...watch.lines import LIBRARY
from ...watch.runner import STOPPED
from ..script import rank
from ..script.listen.session import Session
from ..script.listen.tensors import describe, flatten, named_tensors, outermost_modules, sample
from ..script.listen.updates import settings_of
from ..script.record import LOADED, OPTIMIZER, READ, SAVED, WRITTEN, Start, state_of, uses

FEWER = 4                   # of the numbers that a sample of a divided tensor has, one is kept
SAVES = "saved.{}"          # left among the ranks by a save after so many updates
QUIET_SECONDS, PATIENCE = 0.2, 150      # without a change of a file, and how many times that is waited for
EXTENSION = 4               # times as many updates are watched for a second checkpoint
MIDDLE, BETWEEN = 1, 2      # where a run is killed while it saves: in a file, or after the first one


class ResumeSession(Session):
    """The record of this process, with the files that it uses and what updates begin from; and the end of its run, as
    its task asks: see examine.TASK."""

    _asked_to_stop = False
    _modules: list[torch.nn.Module] = []
    _in_memory: dict[str, str] = {}         # values that were last saved to a buffer

    def forward_begins(self, module):
        super().forward_begins(module)
        record = self.record
        if record.starts and record.starts[-1].updates == record.made:
            return
        self._modules = self._modules or outermost_modules()
        values = {name.replace("module.", ""): one for name, one in named_tensors(self._modules).items()}
        names, optimizers = {id(one): name for name, one in values.items()}, self.updates.optimizers
        taken = {id(parameter) for of in optimizers.values() for parameter in of.parameters()}
        record.optimized = record.optimized or [name for name, one in values.items() if id(one) in taken]
        for at, (optimizer, of) in enumerate(optimizers.items()):
            which = f"of optimizer {at}"
            values |= {f"{OPTIMIZER}{name} {which}": value for name, value in settings_of(optimizer).items()}
            values |= {f"{OPTIMIZER}{key}.{names.get(id(one), f'{number} {which}')}": value
                       for number, one in enumerate(of.parameters())
                       for key, value in (optimizer.state.get(one) or {}).items()
                       if isinstance(value, (torch.Tensor, int, float))}
        parts = {name: sample(value)[::FEWER] for name, value in values.items() if isinstance(value, DTensor)}
        record.starts.append(Start(record.made, {name: describe(value) for name, value in values.items()}, parts))

    def stepped(self) -> None:
        """Keep what is compared: of gradients nothing."""
        for update in (update for steps in self.record.optimizers for update in steps.updates[-1:]):
            update.before_clips = update.parameters = update.after = np.empty(0)
            for one in (update, *update.passes):
                one.gradient = np.empty(0)
        self.save(soon=not self._asked_to_stop)

    def step_begins(self, optimizer, line):
        """All passes of an update have been made: end here, if it is time to."""
        made, task, most = self.record.made, self.task, self.task["most"]
        if 0 < task["stop_at"] <= made and not self._asked_to_stop:
            self._stop(signal.Signals[f"SIG{task['how'].upper()}"])
        saves = sorted(int(path.suffix[1:]) for path in self.folder.glob(SAVES.format("*")))
        saves = [one for one in saves if 0 < one < made]    # since which all ranks have met, so that all find the same
        if saves and not most:
            begin = max(task["stop"], saves[0])
            most = begin + task["after"] * (EXTENSION if saves[-1] <= begin else 1)
        if 0 < most <= made:
            if self._asked_to_stop:
                self._stop(signal.SIGKILL)
            self.end(STOPPED)
            self.leave()

    def _stop(self, number: int) -> None:
        """Get the signal, together with all ranks and once no file changes any more."""
        self._asked_to_stop, before = True, None
        self.save()
        (self.folder / f"rank{self.record.rank}.asked").touch()
        for _ in range(PATIENCE):
            now = len(list(self.folder.glob("rank*.asked"))), state_of(Path.cwd())
            if now == before and now[0] == self.record.workers:
                break
            before = now
            time.sleep(QUIET_SECONDS)
        if not callable(signal.getsignal(number)):          # else the script's own
            faulthandler.unregister(signal.SIGUSR1)
        os.kill(os.getpid(), number)

    def _kill_in_save(self, where: int, path: str = "") -> None:
        if self.task["kill_in"] == where and self.record.made >= self.task["save"]:
            if path:
                os.truncate(path, os.path.getsize(path) // 2)
            self.save()
            os.kill(os.getpid(), signal.SIGKILL)

    def saving(self, path, state):
        if path and any(use.updates == self.record.made for use in uses([self.record], SAVED)):
            self._kill_in_save(BETWEEN)
        values = flatten(state)
        self.note(SAVED, path, values)
        (self.folder / SAVES.format(self.record.made)).touch()
        self._in_memory = {} if path else values

    def saved(self, path):
        if os.path.isfile(path):
            self._kill_in_save(MIDDLE, path)

    def loaded(self, path):
        self.note(LOADED, path)

    def read(self, path):
        if os.path.exists(path) and not path.startswith(LIBRARY):
            self.note(READ, path)

    def written(self, path):
        """A file that is opened next after a save to memory is where that goes."""
        if self.note(WRITTEN, path) and self._in_memory:
            self.note(SAVED, path, self._in_memory)
            self._in_memory = {}

    def renamed(self, path, to):
        """What was saved has another name from now on; a name for what was not makes a file."""
        short = self.shorten(path)
        found = [use for use in uses([self.record], SAVED) if f"{use.path}/".startswith(f"{short}/")]
        for one in found:
            one.path = self.shorten(to) + one.path[len(short):]
        if not found:
            self.note(WRITTEN, to)


main = partial(rank.main, ResumeSession)

if __name__ == "__main__":
    main()
