"""The listeners of a run that is stopped, or started again: its checkpoints, what each update begins from, its end."""
from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
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
from ..script import rank
from ..script.folder import state_of
from ..script.listen.session import Session
from ..script.listen.tensors import digest, local, names_of, outermost_modules, sample
from ..script.listen.updates import Updates
from ..script.record import LOADED, READ, SAVED, STOPPED, WRITTEN, FileUse, Start

NUMBERED = re.compile(r"(?i)\b(epoch|step|iter|iteration|update|global_step)s?\b\W{0,8}(\d+)(?![\d.]*\d)")
BRACKETS = re.compile(r"\['?(.*?)'?\]")
SAMPLED = 1 << 16           # numbers of a tensor that are digested, at least, if it has as many
FEWER = 4                   # of the numbers that a sample of a divided tensor has, one is kept
MOST = 5000                 # values of a checkpoint that are kept
SAVES = "saved.{}"          # left among the ranks by a save after so many updates
QUIET_SECONDS, PATIENCE = 0.2, 30.0     # without a change of a file, and how long that is waited for
EXTENSION = 4               # times as many updates are watched for a second checkpoint
MIDDLE, BETWEEN = 1, 2      # where a run is killed while it saves: in a file, or after the first one


class ResumeSession(Session):
    """The record of this process, and the end of its run, as its task asks: see runs.TASK."""

    asked_to_stop = False

    def stepped(self) -> None:
        self.save(soon=not self.asked_to_stop)

    def step_begins(self) -> None:
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
        if not saves:
            return 0
        stop = max(self.task["least"], saves[0])
        return stop + self.task["after"] * (1 if saves[-1] > stop else EXTENSION)

    def stop(self, number: int) -> None:
        """Get the signal, together with all ranks and once no file changes any more."""
        self.asked_to_stop = True
        self.save()
        (self.folder / f"rank{self.record.rank}.asked").touch()
        until, before = time.monotonic() + PATIENCE, None
        while time.monotonic() < until:
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


class Starts(Listener):
    """What updates begin from, and how many numbers the record keeps of them."""

    def __init__(self, session: ResumeSession, updates: Updates):
        self.session, self.updates = session, updates
        self._modules: dict[str, torch.nn.Module] = {}      # by name
        self._names: dict[int, str] = {}                    # of parameters, by id
        self._read = {session.folder / f"rank{session.record.rank}.{name}": 0 for name in ("stdout", "stderr")}
        self._scale = 1.0

    def forward_begins(self):
        record = self.session.record
        if record.starts and record.starts[-1].updates == record.made:
            return
        self._modules = self._modules or _name(outermost_modules())
        tensors = {f"{outer}.{name.replace('module.', '')}": values for outer, module in self._modules.items()
                   for name, values in (*module.named_parameters(), *module.named_buffers())}
        taken = {id(one) for each in self.updates.optimizers for one in each.parameters()}
        record.optimized = record.optimized or [name for name, values in tensors.items() if id(values) in taken]
        states = self._states()
        parts = {f"{of} {name}": sample(values)[::FEWER] for of, held in (("tensors", tensors), ("states", states))
                 for name, values in held.items() if isinstance(values, DTensor)}
        record.starts.append(Start(record.made, {name: _digest(values) for name, values in tensors.items()}, {
            name: _describe(values) for name, values in states.items()}, self._printed(), parts))

    def _states(self) -> dict[str, torch.Tensor | int | float]:
        found: dict[str, torch.Tensor | int | float] = {}
        optimizers = [one.optimizer() for one in self.updates.optimizers]
        for at, optimizer in enumerate(one for one in optimizers if one is not None):
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            if not {id(one) for one in parameters} <= {*self._names}:
                self._names |= names_of(parameters)
            for one in parameters:
                found |= {f"{at}.{key}.{self._names[id(one)]}": value
                          for key, value in (optimizer.state.get(one) or {}).items()
                          if isinstance(value, (torch.Tensor, int, float))}
        return found

    def _printed(self) -> list[str]:
        found = []
        sys.stdout.flush()
        sys.stderr.flush()
        for path, begin in self._read.items():
            text = path.read_bytes()[begin:]
            self._read[path] = begin + len(text)
            found += [f"{word.lower()} {number}" for word, number in NUMBERED.findall(text.decode(errors="replace"))]
        return found

    def loss_scaled(self, scale):
        self._scale = scale

    def step_begins(self, optimizer, line):
        self.session.step_begins()

    def step_ends(self, optimizer):
        """Keep what is compared: of gradients nothing."""
        record = self.session.record
        if len(record.scales) < record.made:
            record.scales.append(self._scale)
        for update in (update for steps in record.optimizers for update in steps.updates[-1:]):
            update.gradient = update.before_clips = update.after = np.empty(0)
            for one in update.passes:
                one.gradient = np.empty(0)


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
    if not isinstance(value, torch.Tensor):
        return repr(value)
    own = local(value.detach())
    if not own.dim():
        return repr(own.item())
    return f"{str(own.dtype).removeprefix('torch.')} {_digest(own) if own.any() else 0}"


class Files(Listener):
    """Which files are saved, loaded, written, read and renamed, and by which line."""

    def __init__(self, session: ResumeSession, updates: Updates):
        self.session, self.updates, self.folder = session, updates, os.path.join(os.path.realpath(Path.cwd()), "")
        self._doctors = os.path.join(os.path.realpath(session.folder), "")      # beside the script's folder
        self._buffered: dict[str, str] = {}

    def _note(self, act: str, path: str, values: dict[str, str] | None = None) -> None:
        record = self.session.record
        if path and self.session.here and not self._is_ours(path):
            passes = max((len(one.passes) for one in self.updates.optimizers), default=0)
            record.files.append(FileUse(act, self._short(path), record.made, passes, line_of_call(),
                                        values or {}))

    def _is_ours(self, path: str) -> bool:
        """Whether a file is of a library, or one of the doctor's."""
        return path.startswith(LIBRARY) or path.startswith(self._doctors) and not path.startswith(self.folder)

    def _short(self, path: str) -> str:
        return os.path.relpath(path, self.folder) if path.startswith(self.folder) else path

    def saving(self, path, state):
        record = self.session.record
        if path and any(one.updates == record.made for one in record.uses(SAVED)):
            self._kill_in(BETWEEN)
        values = flatten(state)
        self._note(SAVED, path, values)
        (self.session.folder / SAVES.format(record.made)).touch()
        self._buffered = {} if path else values

    def saved(self, path):
        if os.path.isfile(path):
            self._kill_in(MIDDLE, path)

    def _kill_in(self, where: int, path: str = "") -> None:
        task = self.session.task
        if task["in_save"] == where and self.session.record.made >= task["save"]:
            if path:
                os.truncate(path, os.path.getsize(path) // 2)
            self.session.save()
            self.session.kill(signal.SIGKILL)

    def loaded(self, path):
        self._note(LOADED, path)

    def written(self, path):
        """A file that is opened next after a save to memory is where that goes."""
        if self._is_ours(path):
            return
        values, self._buffered = self._buffered, {}
        if values:
            self._note(SAVED, path, values)
        self._note(WRITTEN, path)

    def read(self, path):
        if os.path.exists(path):
            self._note(READ, path)

    def renamed(self, path, to):
        """What was saved has another name from now on; a name for what was not makes a file."""
        path, to = self._short(path), self._short(to)
        found = [one for one in self.session.record.uses(SAVED) if f"{one.path}/".startswith(f"{path}/")]
        for one in found:
            one.path = to + one.path[len(path):]
        if not found:
            self._note(WRITTEN, to)


def flatten(state: Any) -> dict[str, str]:
    """The values of a checkpoint, by their keys."""
    leaves, _ = tree_flatten_with_path(state)
    return {BRACKETS.sub(r".\1", keystr(keys)).lstrip("."): _describe(value) for keys, value in leaves[:MOST]
            if isinstance(value, (torch.Tensor, int, float, str, bool, np.generic))}


main = partial(rank.main, ResumeSession, (Starts, Files))

if __name__ == "__main__":
    main()
