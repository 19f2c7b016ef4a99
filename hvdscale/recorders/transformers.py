"""Records the runs of Hugging Face's Trainer.

    from hvdscale.recorders.transformers import Recorder
    Trainer(..., callbacks=[Recorder("runs/w8.h5", dataset="wikitext", model="gpt2", metrics={"val/loss": "min"},
                                     target="val/loss<3.2")])

The metric ``val/loss`` is what the trainer logs as ``eval_loss``. The trainer gives losses as means since it last
logged them: with ``logging_steps=1`` each step has its own, else the steps between have none. A run that resumes from a
checkpoint continues its log.
"""

from typing import Any

from transformers import TrainerCallback

from ..log.record import record
from .harmless import HarmlessRecorder


class Recorder(HarmlessRecorder, TrainerCallback):
    """Writes the log of a run; ``path`` and ``about`` are those of ``hvdscale.record``, which reads batch, optimizer,
    rate, seed, budget, rank and workers from the trainer."""

    _seen: dict[str, Any] | None = None         # by the evaluation that is open

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        accumulation = args.gradient_accumulation_steps
        found = dict(optimizer=str(getattr(args.optim, "value", args.optim)), lr=args.learning_rate,
                     accumulation=accumulation, seed=args.seed, budget_steps=state.max_steps,
                     global_batch=args.train_batch_size * accumulation * args.world_size, workers=args.world_size,
                     rank=int(not state.is_world_process_zero), first_step=state.global_step or None)
        self._run = record(self._path, **{**found, **self._about})

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._open.close()                      # the pause of evaluations, of one validation set or more, and of saving
        self._seen, self._rate = None, given["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if not control.should_log:              # else on_log follows, and has the loss
            self._add(state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **given: Any) -> None:
        if logs and "loss" in logs:
            self._add(state, control, logs["loss"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._add(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict | None = None, **given: Any) -> None:
        if self._seen is not None:
            found = {f"val/{name.removeprefix('eval_')}": value for name, value in (metrics or {}).items()}
            self._seen.update({name: found[name] for name in self._about["metrics"] if name in found})

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._open.close()
        self._run.close()

    def _add(self, state: Any, control: Any, loss: float | None = None) -> None:
        """Adds the step, unless it is there; an evaluation that the trainer is about to make begins."""
        if state.global_step > self._run.steps:
            self._run.step(loss, self._rate)
        if control.should_evaluate and self._seen is None:
            self._seen = self._open.enter_context(self._run.evaluation())
        elif control.should_save and self._seen is None:
            self._open.enter_context(self._run.pause())
