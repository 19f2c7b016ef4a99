"""The listeners of a run that is stopped, or started again: its checkpoints, what each update begins from, its end."""
from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from ...watch.lines import LIBRARY, line_of_call
from ...watch.listener import Listener
from ...watch.runner import STOPPED
from ..script import rank
from ..script.folder import state_of
from ..script.listen.session import Session
from ..script.listen.tensors import digest, local, outermost_modules, sample
from ..script.listen.updates import Updates, settings_of
from ..script.record import LOADED, READ, SAVED, WRITTEN, FileUse, Start

BRACKETS = re.compile(r"\['?(.*?)'?\]")
SAMPLED = 1 << 16           # numbers of a tensor that are digested, at least, if it has as many
FEWER = 4                   # of the numbers that a sample of a divided tensor has, one is kept
MOST = 5000                 # values of a checkpoint that are kept
SAVES = "saved.{}"          # left among the ranks by a save after so many updates
QUIET_SECONDS, PATIENCE = 0.2, 150      # without a change of a file, and how many times that is waited for
EXTENSION = 4               # times as many updates are watched for a second checkpoint
MIDDLE, BETWEEN = 1, 2      # where a run is killed while it saves: in a file, or after the first one


class ResumeSession(Session, Listener):
    """The record of this process, with what updates begin from; and the end of its run, as its task asks: see
    runs.TASK."""

    asked_to_stop = False

    def listen(self, updates: Updates) -> ResumeSession:
        self.updates, self._modules = updates, dict[str, torch.nn.Module]()     # by name
        return self

    def forward_begins(self):
        record = self.record
        if record.starts and record.starts[-1].updates == record.made:
            return
        self._modules = self._modules or _name(outermost_modules())
        tensors = {f"{outer}.{name.replace('module.', '')}": values for outer, module in self._modules.items()
                   for name, values in (*module.named_parameters(), *module.named_buffers())}
        taken = {id(one) for of in self.updates.optimizers for one in of.parameters()}
        record.optimized = record.optimized or [name for name, values in tensors.items() if id(values) in taken]
        states = self._states({id(values): name for name, values in tensors.items()})
        parts = {f"{of} {name}": sample(values)[::FEWER] for of, held in (("tensors", tensors), ("states", states))
                 for name, values in held.items() if isinstance(values, DTensor)}
        record.starts.append(Start(record.made, {name: _digest(values) for name, values in tensors.items()}, {
            name: _describe(values) for name, values in states.items()}, parts))

    def _states(self, names: dict[int, str]) -> dict[str, Any]:
        """Settings and states of all optimizers, by the optimizer's number, the key, and the group or parameter."""
        found: dict[str, Any] = {}
        there = [(of, one) for of in self.updates.optimizers if (one := of.optimizer()) is not None]
        for at, (of, optimizer) in enumerate(there):
            found |= {f"{at}.{name}": value for name, value in settings_of(optimizer).items()}
            for number, one in enumerate(of.parameters()):
                state = optimizer.state.get(one) or {}
                found |= {f"{at}.{key}.{names.get(id(one), number)}": value for key, value in state.items()
                          if isinstance(value, (torch.Tensor, int, float))}
        return found

    def stepped(self) -> None:
        """Keep what is compared: of gradients nothing."""
        for update in (update for steps in self.record.optimizers for update in steps.updates[-1:]):
            update.before_clips = update.parameters = update.after = np.empty(0)
            for one in (update, *update.passes):
                one.gradient = np.empty(0)
        self.save(soon=not self.asked_to_stop)

    def step_begins(self, optimizer, line):
        """All passes of an update have been made: end here, if it is time to."""
        made, task = self.record.made, self.task
        if task["stop"] and made >= task["stop"] and not self.asked_to_stop:
            self.stop(task["signal"])
        most = task["most"] or self._most()
        if most and made >= most:
            if self.asked_to_stop:
                self.stop(signal.SIGKILL)
            self.end(STOPPED)
            self._leave()

    def _most(self) -> int:
        """The updates to watch, known once there was a checkpoint; 0 before. All ranks find the same, as they have
        met since all saves that count."""
        saves = sorted(int(path.suffix[1:]) for path in self.folder.glob(SAVES.format("*")))
        saves = [one for one in saves if 0 < one < self.record.made]
        stop = max(self.task["least"], *saves[:1], 0)
        times = EXTENSION if saves and saves[-1] <= stop else 1
        return stop + times * self.task["after"] if saves else 0

    def stop(self, number: int) -> None:
        """Get the signal, together with all ranks and once no file changes any more."""
        self.asked_to_stop, before = True, None
        self.save()
        (self.folder / f"rank{self.record.rank}.asked").touch()
        for _ in range(PATIENCE):
            now = len(list(self.folder.glob("rank*.asked"))), state_of(Path.cwd())
            if now == before and now[0] == self.record.workers:
                break
            before = now
            time.sleep(QUIET_SECONDS)
        self.kill(number)

    def kill(self, number: int) -> None:
        if not callable(signal.getsignal(number)):          # else the script's own
            faulthandler.unregister(signal.SIGUSR1)
        os.kill(os.getpid(), number)


def _name(modules: list[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """The modules that have tensors, by their classes, numbered where several have one."""
    found = [module for module in modules if [*module.parameters(), *module.buffers()]]
    names = [type(module).__name__ for module in found]
    return {f"{name}{names[:at].count(name) or ''}": found[at] for at, name in enumerate(names)}


def _digest(values: torch.Tensor) -> str:
    """A digest of a tensor's numbers, of large ones at fixed places."""
    own = local(values.detach()).reshape(-1)
    return digest([own[::max(1, own.numel() // SAMPLED)]])


def _describe(value: Any) -> str:
    """A number as it prints, or a tensor's kind of number and a digest; 0 for zeros alone."""
    own = local(value.detach()) if isinstance(value, torch.Tensor) else np.asarray(value)
    if not own.ndim:
        return str(own.item())
    return f"{str(own.dtype).removeprefix('torch.')} {_digest(own) if own.any() else 0}"


def flatten(state: Any) -> dict[str, str]:
    """The values of a checkpoint, by their keys."""
    leaves, _ = tree_flatten_with_path(state)
    return {BRACKETS.sub(r".\1", keystr(keys)).lstrip("."): _describe(value) for keys, value in leaves[:MOST]
            if isinstance(value, (torch.Tensor, int, float, str, bool, np.generic))}


class Files(Listener):
    """Which files are saved, loaded, written, read and renamed, and by which line."""

    def __init__(self, session: ResumeSession, updates: Updates):
        self.session, self.record, self.folder = session, session.record, os.path.join(os.path.realpath(Path.cwd()), "")
        self._ours = *LIBRARY, os.path.join(os.path.realpath(session.folder), "")     # files of no script
        self._buffered: dict[str, str] = {}

    def _note(self, act: str, path: str, values: dict[str, str] | None = None) -> None:
        if path and self.session.here and (path.startswith(self.folder) or not path.startswith(self._ours)):
            passes = max((len(one.passes) for one in self.session.updates.optimizers), default=0)
            self.record.files.append(FileUse(act, self._short(path), self.record.made, passes, line_of_call(),
                                             values or {}))

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self.folder) if path.startswith(self.folder) else path

    def _kill_in(self, where: int, path: str = "") -> None:
        if self.session.task["in_save"] == where and self.record.made >= self.session.task["save"]:
            if path:
                os.truncate(path, os.path.getsize(path) // 2)
            self.session.save()
            self.session.kill(signal.SIGKILL)

    def saving(self, path, state):
        if path and any(one.updates == self.record.made for one in self.record.uses(SAVED)):
            self._kill_in(BETWEEN)
        values = flatten(state)
        self._note(SAVED, path, values)
        (self.session.folder / SAVES.format(self.record.made)).touch()
        self._buffered = {} if path else values

    def saved(self, path):
        if os.path.isfile(path):
            self._kill_in(MIDDLE, path)

    def loaded(self, path):
        self._note(LOADED, path)

    def read(self, path):
        self._note(READ, path if os.path.exists(path) else "")

    def written(self, path):
        """A file that is opened next after a save to memory is where that goes."""
        values, count = self._buffered, len(self.record.files)
        self._note(WRITTEN, path)
        if values and len(self.record.files) > count:
            self._buffered = {}
            self._note(SAVED, path, values)

    def renamed(self, path, to):
        """What was saved has another name from now on; a name for what was not makes a file."""
        short = self._short(path)
        found = [one for one in self.record.uses(SAVED) if f"{one.path}/".startswith(f"{short}/")]
        for one in found:
            one.path = self._short(to) + one.path[len(short):]
        if not found:
            self._note(WRITTEN, to)


main = partial(rank.main, ResumeSession, (ResumeSession.listen, Files))

if __name__ == "__main__":
    main()
