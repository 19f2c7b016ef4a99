"""A log of a training loop of your own, written without torch: ``hvdscale.record``.

    with hvdscale.record("runs/w8.h5", dataset="digits", model="mine", optimizer="adamw", global_batch=1024, lr=3e-4,
                         metrics={"val/error": "min"}, target="val/error<0.1") as run:
        for inputs, labels in batches:
            ...
            run.step(loss)
            if run.steps % 100 == 0:
                with run.evaluation() as seen:                  # this time is not counted
                    seen["val/error"] = evaluate(model)
                if run.met:
                    break
"""
from __future__ import annotations

import json
import math
import operator
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, SupportsFloat

import numpy as np

from .. import __version__
from ..errors import HvdscaleError, LogError, UsageError
from ..plan.values import check_value, did_you_mean
from ..system.version import commit_of
from ..target import SPLITS, Target, metric_faults
from ..workers.launch import place
from .check import refuse_row
from .reader import read_log
from .schema import DIRECTIONS, INTERRUPTED, SMALLER, UNKNOWN_SEED, Status
from .writer import LogWriter

TRIAL = 0           # a run's log holds one trial
SAME = ("dataset", "model", "optimizer", "global_batch", "seed")     # what a continued run cannot change


def record(path: str | os.PathLike[str], *, dataset: str, model: str, optimizer: str, global_batch: int, lr: float,
           metrics: Mapping[str, str], target: str | None = None, workers: int | None = None, rank: int | None = None,
           seed: int | None = None, accumulation: int = 1, budget_steps: int = 0, train_examples: int | None = None,
           metaparameters: Mapping[str, float] = {}, search: bool = False, first_step: int | None = None,
           overwrite: bool = False, take_over: bool = False, flush_seconds: float = 1.0,
           clock: Callable[[], float] = time.monotonic) -> Recording:
    """A new log for the steps and evaluations of a loop; rank 0 writes it, the same calls do nothing on other ranks.

    global_batch    examples averaged into one step by all workers
    lr              learning rate of the steps that name none
    metrics         each ``split/metric`` that evaluations measure, and "min" or "max": which way it gets better
    target          such as ``val/error<0.1``: when the run counts as done; see ``Recording.met``
    workers, rank   None: those of the launcher (torchrun, mpirun, horovodrun, srun), else 1 and 0
    seed            None: unknown, so that no other run counts as having the same
    accumulation    passes through the model that a worker adds up for one step
    budget_steps    steps after which the run is complete without its target; 0: not known
    train_examples  in the training set, so that reports know epochs
    metaparameters  others than the learning rate, by name
    search          whether the run is a draw of a metaparameter search, rather than a repeat of one setting
    first_step      steps done before, of a run that continues from a checkpoint: the log at ``path``, if there is one,
                    continues there in a next segment. None: a new run
    overwrite       replace a log; take_over: continue one where the file system refuses locks
    flush_seconds   a killed process loses the rows of this time at most, and of one step

    Raises UsageError, before a file is made, for an argument of which ``check`` would refuse the log; LogError where
    the log cannot be opened, exists already or continues another run, WorkersError where the launcher gives no rank.
    """
    goal, columns = _settle(metrics, target)
    found, local = _rank_and_size()
    counts = _whole_numbers(global_batch=global_batch, workers=workers, rank=rank, seed=seed, accumulation=accumulation,
                            budget_steps=budget_steps, train_examples=train_examples, first_step=first_step)
    rank, workers = counts.pop("rank", found[0]), counts.setdefault("workers", found[1])
    start = counts.pop("first_step", 0)
    examples, lr = counts.pop("train_examples", None), _number("lr", lr)
    points = {"learning_rate": lr, **_metaparameters(metaparameters)}
    row = {"dataset": dataset, "model": model, "optimizer": optimizer, "ghost_batch": 0, "seed": UNKNOWN_SEED,
           "local_batch": -(-counts["global_batch"] // max(1, workers * counts["accumulation"])), **counts}
    for name in ("dataset", "model", "optimizer"):
        if not isinstance(row[name], str):
            raise UsageError(f"{name} = {row[name]!r} is not text")
    plan = json.dumps({"problem": {"train_examples": examples} if examples else {},
                       "measurement": {"target": str(goal)} if goal else {}, **({"search": True} if search else {}),
                       "execution": {"local_workers": local} if local and workers == found[1] else {}})
    trial = dict(id=TRIAL, status=Status.RUNNING, stop_reason="", plan=plan, **row)
    refuse_row("trials", **trial)
    refuse_row("steps", trial=TRIAL, step=start + 1, lr=lr, step_seconds=0.0)
    how = (goal, lr, start, counts["global_batch"], counts["budget_steps"],
           _number("flush_seconds", flush_seconds, finite=False), clock)
    if rank:
        return Recording(None, columns, 0.0, *how)
    seconds, previous_end = _continued(path, first_step, row)
    torch, commit = sys.modules.get("torch"), commit_of(".")
    about = {"versions": {"hvdscale": __version__, **({"torch": torch.__version__} if torch else {})},
             **({"commit": commit} if commit else {})}
    device = torch.cuda.get_device_name() if torch and torch.cuda.is_initialized() else "cpu"       # ready in the loop
    writer = LogWriter(path, metrics=columns, metaparameters=points, attributes=about, overwrite=overwrite,
                       take_over=take_over, resume=first_step is not None, flush_seconds=math.inf)
    try:
        writer.append("trials", **trial, **{f"metaparameters/{name}": value for name, value in points.items()})
        writer.append("restarts", trial=TRIAL, first_step=start, workers=workers, host=socket.gethostname(),
                      device=device, time=time.time(), previous_end=previous_end)
        writer.flush(sync=True)
        return Recording(writer, columns, seconds, *how)
    except BaseException:
        writer.abandon()
        raise


class Recording(AbstractContextManager["Recording"]):
    """A run whose steps and evaluations go to its log; made by ``record``.

    steps   steps done;  met: whether the last evaluation met the target
    failure why the log could not be written, from where on the loop continues without it; raised at the end
    """

    failure: LogError | None = None
    met = False

    def __init__(self, writer: LogWriter | None, metrics: Mapping[str, str], seconds: float, target: Target | None,
                 lr: float, steps: int, global_batch: int, budget_steps: int, flush_seconds: float,
                 clock: Callable[[], float]) -> None:
        self.steps, self._writer, self._metrics, self._target = steps, writer, metrics, target
        self._seconds, self._batch, self._budget = seconds, global_batch, budget_steps
        self._lr, self._flush_seconds, self._clock = float(lr), flush_seconds, clock
        # of the steps since the last flush, and the last loss that was given
        self._losses: list[Any] = []
        self._rates: list[float] = []
        self._times: list[float] = []
        self._last_loss: Any = 0.0
        self._evaluated = -1
        self._since = clock()
        self._due = self._since + flush_seconds

    def step(self, loss: Any = None, lr: float | None = None) -> None:
        """Adds a step: what came since the last one, evaluations left out.

        loss    a number or a tensor of one element, which must not change afterwards: it is read at a later step, so
                that no step waits for a GPU; None: not measured
        lr      None: that of the run
        """
        lr = self._lr if lr is None else _number("lr", lr)
        if getattr(loss, "size", None) and math.prod(loss.shape) != 1:
            raise UsageError(f"the loss has shape {tuple(loss.shape)}; give one number, such as its mean")
        now = self._clock()
        seconds, self._since = now - self._since, now
        self.steps += 1
        self._seconds += seconds
        if self._writer is None:
            return
        if now >= self._due:
            self.flush()
        if loss is None:
            loss = math.nan
        else:
            self._last_loss = loss = loss.detach() if hasattr(loss, "detach") else _number("loss", loss, finite=False)
        self._losses.append(loss)
        self._rates.append(lr)
        self._times.append(seconds)
        if seconds >= self._flush_seconds:
            self.flush()

    @contextmanager
    def evaluation(self) -> Iterator[dict[str, SupportsFloat]]:
        """An evaluation after the steps so far: what is put into the dict becomes its row. Its time is not counted.
        UsageError for a metric that was not declared, and where this step was evaluated before."""
        with self.pause() as seconds:
            self.flush()
            seen: dict[str, SupportsFloat] = {}
            yield seen
            for name in seen:
                if name not in self._metrics:
                    near = did_you_mean(name, self._metrics, f"there are {', '.join(self._metrics)}")
                    raise UsageError(f"the metric {name!r} was not declared: {near}")
            if self._evaluated == self.steps:
                raise UsageError(f"step {self.steps} is evaluated twice; measure all metrics in one evaluation()")
            self._evaluated, values = self.steps, {
                name: _number(name, value, finite=False) for name, value in seen.items()}
            self.met = self._target is not None and bool(self._target.met_by(values.get(self._target.column, math.nan)))
            if self._writer is not None:
                self._write(self._writer.append, "evaluations", trial=TRIAL, step=self.steps,
                            examples=self.steps * self._batch, train_seconds=seconds, **values)
                self._write(self._writer.flush)

    @contextmanager
    def pause(self) -> Iterator[float]:
        """Time that is not counted, such as that of saving a checkpoint; gives the seconds of training before it."""
        self._read_losses()                     # which waits for a GPU's steps, in their time
        started = self._clock()
        try:
            yield self._seconds + started - self._since
        finally:
            self._since += self._clock() - started
            self._due = self._clock() + self._flush_seconds

    def flush(self) -> None:
        """Writes the rows so far to the file."""
        self._read_losses()
        count, first = len(self._losses), self.steps - len(self._losses)
        if self._writer is not None:
            self._write(self._writer.extend, "steps", count, trial=TRIAL, step=range(first + 1, self.steps + 1),
                        loss=self._losses, lr=self._rates, step_seconds=self._times)
            self._write(self._writer.flush)
        self._losses, self._rates, self._times = [], [], []
        self._due = self._clock() + self._flush_seconds

    def close(self, reason: str = "") -> None:
        """Ends the run: COMPLETE, or INFEASIBLE where the last loss is not finite, or INCOMPLETE for a reason such as
        an error. Raises the LogError of a log that could not be written."""
        writer = self._writer
        if writer is not None:
            try:
                self.flush()
                self._write(writer.set_status, TRIAL, *self._end(reason))
                self._write(writer.finish)
            finally:
                self._writer = None
                writer.abandon()            # after an error; else it has finished
        if self.failure:
            raise self.failure

    def _end(self, reason: str) -> tuple[Status, str]:
        loss = float(self._last_loss)
        if not math.isfinite(loss):
            return Status.INFEASIBLE, f"the loss is {loss} at step {self.steps}"
        if reason:
            return Status.INCOMPLETE, reason
        if self.met:
            return Status.COMPLETE, f"target {self._target} met"
        if self.steps < self._budget:
            return Status.INCOMPLETE, f"the loop ended before its {self._budget} steps"
        return Status.COMPLETE, "the loop ended"

    def _read_losses(self) -> None:
        """Has the losses as floats: tensors on a GPU in one copy."""
        losses = self._losses
        on_gpu = bool(losses) and not any(getattr(loss, "is_cpu", True) for loss in losses)
        if on_gpu and len({(loss.dtype, loss.device) for loss in losses}) == 1:
            self._losses = sys.modules["torch"].stack([loss.reshape(()) for loss in losses]).tolist()
        else:
            self._losses = list(map(float, losses))

    def _write(self, what: Callable[..., object], *row: Any, **values: Any) -> None:
        if self.failure is None:
            try:
                what(*row, **values)
            except LogError as error:
                self.failure = error
                warnings.warn(f"{error}; the loop continues without its log", stacklevel=4)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if kind is None:
            return self.close()
        try:
            self.close(f"{kind.__name__}: {error}" if str(error) else kind.__name__)
        except HvdscaleError:
            pass                    # the loop's own error says more


def _settle(metrics: Mapping[str, str], target: str | None) -> tuple[Target | None, dict[str, str]]:
    if not isinstance(metrics, Mapping) or not metrics:
        raise UsageError("metrics names each metric and which way it gets better, such as "
                         "{'val/error': 'min', 'val/accuracy': 'max'}")
    for name, way in metrics.items():
        if not isinstance(name, str) or not isinstance(way, str):
            raise UsageError(f"metrics = {metrics!r}: give text, such as {{'val/error': 'min'}}")
        split, _, metric = name.partition("/")
        if split not in SPLITS or not metric:
            raise UsageError(f"the metric {name!r} is not split/metric, such as val/error, of the splits "
                             f"{', '.join(SPLITS)}")
        if way not in DIRECTIONS:
            raise UsageError(f"the metric {name!r} gets better towards {way!r}; choose 'min' or 'max'")
    for fault in metric_faults([name.partition("/")[2] for name in metrics]):
        raise UsageError(fault)
    columns = {name: DIRECTIONS[way] for name, way in metrics.items()}
    if target is not None and not isinstance(target, str):
        raise UsageError(f"target = {target!r} is not text, such as 'val/error<0.1'")
    goal = Target.parse(target) if target else None
    if goal and goal.column not in columns:
        raise UsageError(f"target {str(goal)!r}: {goal.column} is not among the metrics {', '.join(columns)}")
    if goal and goal.minimizes != (columns[goal.column] == SMALLER):
        raise UsageError(f"target {str(goal)!r}: a {columns[goal.column]} {goal.column} is better")
    return goal, columns


def _whole_numbers(**given: Any) -> dict[str, int]:
    """The arguments that are given, as ints; UsageError for one that is none, or is beyond 64 bits or below 0."""
    found = {}
    for name, value in given.items():
        if value is not None or name not in ("workers", "rank", "seed", "train_examples", "first_step"):
            with suppress(TypeError):           # of what is no whole number
                value = value if isinstance(value, bool) else operator.index(value)
            found[name] = check_value(name, value, int, least=0)
    return found


def _number(name: str, value: Any, finite: bool = True) -> float:
    given = value.detach() if hasattr(value, "detach") else value          # a tensor that needs a gradient
    try:
        if isinstance(given, (str, bytes)) or finite and not math.isfinite(float(given)):
            raise ValueError
        return float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise UsageError(f"{name} = {value!r} is not a {'finite ' if finite else ''}number") from None


def _metaparameters(given: Mapping[str, Any]) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise UsageError(f"metaparameters = {given!r} is not a mapping of names to numbers")
    for name in given:
        if not isinstance(name, str) or not name.isprintable() or "/" in name or not name.strip("."):
            raise UsageError(f"metaparameters: {name!r} is not a name that a column can have, such as 'momentum'")
    return {name: _number(f"metaparameters {name}", value, finite=False) for name, value in given.items()}


def _rank_and_size() -> tuple[tuple[int, int], int]:
    """(this process's rank, the number of workers), of launchers that set RANK and WORLD_SIZE alone, too; the number of
    workers on its node, or 0 where that is not known."""
    found = place()
    if found.launcher is None and all(os.environ.get(name, "").isdecimal() for name in ("RANK", "WORLD_SIZE")):
        return (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])), 0
    return (found.rank, found.size), found.local_size if found.launcher else 0


def _continued(path: str | os.PathLike[str], first_step: int | None, row: Mapping[str, Any]) -> tuple[float, str]:
    """Seconds of training before the first step, and how the process before ended; 0 and "" of a new run. LogError for
    the log of another run."""
    if first_step is None or not os.path.lexists(path):
        return 0.0, ""
    with read_log(path) as log:
        for name in SAME if log.trials.rows else ():
            if log.trials[name][-1] != row[name]:
                raise LogError(f"{os.fspath(path)}: its {name} is {log.trials[name][-1]}, not {row[name]}: another "
                               "run's log; choose another name, or first_step=None and overwrite=True")
        end = log.trials["stop_reason"][-1] if log.trials.rows else ""
        # the seconds of the last evaluation, and of the steps after it
        evaluated = log.evaluations["step"] <= first_step
        last = log.evaluations["step"][evaluated].max(initial=0)
        within = (log.steps["step"] > last) & (log.steps["step"] <= first_step)
        seconds = log.evaluations["train_seconds"][evaluated].max(initial=0.0)
        return float(seconds + np.nansum(log.steps["step_seconds"][within])), end or INTERRUPTED
