"""Records the runs of Lightning's Trainer.

    from hvdscale.recorders.lightning import Recorder
    Trainer(callbacks=[Recorder("runs/w8.h5", dataset="digits", model="mine", global_batch=1024,
                                metrics={"val/error": "min"}, target="val/error<0.1")])

The metric ``val/error`` is what the module logs as ``val/error`` or ``val_error``. Of several workers, losses are those
of the first. A run that resumes from a checkpoint continues its log.
"""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..log.record import record
from .harmless import HarmlessRecorder


class Recorder(HarmlessRecorder, Callback):
    """Writes the log of a run; ``path`` and ``about`` are those of ``hvdscale.record``, which reads the optimizer, its
    rate, rank and workers from the trainer."""

    _saving = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        optimizer, step = trainer.optimizers[0], trainer.global_step
        found = dict(optimizer=type(optimizer).__name__.lower(), lr=optimizer.param_groups[0]["lr"],
                     accumulation=trainer.accumulate_grad_batches, rank=trainer.global_rank,
                     workers=trainer.world_size, first_step=step or None)
        self._run = record(self._path, **{**found, **self._about})
        self._losses: list[Any] = []
        self._rate, self._evaluated = None, -1

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        self._losses.append(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        if trainer.global_step > self._run.steps:
            known = None not in self._losses                    # of a batch that is skipped there is none
            self._run.step(sum(self._losses) if known else None, self._rate)    # each is its share of the accumulated
            self._losses = []
        while trainer.global_step > self._run.steps:            # manual optimization may take several in a batch
            self._run.step(None, self._rate)

    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, optimizer: Any) -> None:
        self._rate = optimizer.param_groups[0]["lr"]

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self._run and not trainer.sanity_checking:
            again, self._evaluated = self._evaluated == self._run.steps, self._run.steps
            entered = self._open.enter_context(self._run.pause() if again else self._run.evaluation())
            self._seen = {} if again else entered

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self._run and not trainer.sanity_checking:
            logged = trainer.callback_metrics
            names = {name: name if name in logged else name.replace("/", "_") for name in self._about["metrics"]}
            self._seen.update({name: logged[key] for name, key in names.items() if key in logged})
            self._open.close()

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: Any) -> None:
        if self._run and not trainer.sanity_checking and not self._saving:
            self._saving = self._open.enter_context(self._run.pause()) >= 0         # until the next batch

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._open.close()
        self._saving = False

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._open.close()
        self._run.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        if self._run:
            self._run.close(f"{type(exception).__name__}: {exception}")
