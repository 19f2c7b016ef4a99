"""One small training under a plain loop, Lightning or Hugging Face's Trainer, with its log.

    python -m tests.recorders.loops plain|lightning|transformers BATCH SEED LOG        ACCUMULATION: passes a step

All visit the examples in one order, so that they make the same updates; several workers take every size-th example.
"""
import os
import sys

import torch
from torch import nn

import hvdscale

STEPS, EVERY, LR, PASSES = 12, 4, 0.1, int(os.environ.get("ACCUMULATION", "1"))
ABOUT = dict(dataset="points", model="linear", metrics={"val/loss": "min", "val/error": "min"}, target="val/error<0.2")


def data(seed, batch):
    """Inputs and classes: those of all steps in their order, and those of the evaluation."""
    torch.manual_seed(seed)
    inputs = torch.randn(STEPS * batch + 100, 4)
    classes = (inputs.sum(1) > 0).long()
    return (inputs[:-100], classes[:-100]), (inputs[-100:], classes[-100:])


def linear(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 2)


def measure(model, split):
    with torch.no_grad():
        scores = model(split[0])
        return {"val/loss": float(nn.functional.cross_entropy(scores, split[1])),
                "val/error": float((scores.argmax(1) != split[1]).float().mean())}


def plain(batch, seed, log):
    train, val = data(seed, batch)
    model = linear(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with hvdscale.record(log, optimizer="sgd", lr=LR, global_batch=batch, seed=seed, **ABOUT) as run:
        for inputs, classes in zip(*(values.split(batch) for values in train)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), classes)
            loss.backward()
            optimizer.step()
            run.step(loss)
            if run.steps % EVERY == 0:
                with run.evaluation() as seen:
                    seen.update(measure(model, val))


def lightning(batch, seed, log, **more):
    from lightning import pytorch as pl

    from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

    from hvdscale.recorders.lightning import Recorder
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    train, val = data(seed, batch)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = linear(seed)

        def training_step(self, given, at):
            loss = nn.functional.cross_entropy(self.model(given[0]), given[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, given, at):
            for name, value in measure(self.model, given).items():
                self.log(name.replace("/", "_"), value)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LR)

    sets = [torch.utils.data.TensorDataset(*split) for split in (train, val)]
    with_sampler = torch.utils.data.DistributedSampler(
        sets[0], workers, int(os.environ.get("RANK", "0")), shuffle=False) if workers > 1 else None
    loaders = [torch.utils.data.DataLoader(sets[0], batch // workers // PASSES, sampler=with_sampler),
               torch.utils.data.DataLoader(sets[1], 100)]
    recorder = Recorder(log, global_batch=batch, seed=seed, **ABOUT) if log else []
    launched = TorchElasticEnvironment() if workers > 1 else LightningEnvironment()     # rather than look for MPI
    more = {"callbacks": recorder, "logger": False, "log_every_n_steps": 1, "plugins": [launched], "max_epochs": 1,
            "val_check_interval": EVERY * PASSES, "accumulate_grad_batches": PASSES, **more}
    pl.Trainer(accelerator="cpu", devices=workers, strategy="ddp" if workers > 1 else "auto",
               enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
               use_distributed_sampler=False, num_sanity_val_steps=2, **more).fit(Module(), *loaders)


def transformers(batch, seed, log, **more):
    from transformers import Trainer, TrainingArguments

    from hvdscale.recorders.transformers import Recorder
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    train, val = data(seed, batch)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = linear(seed)

        def forward(self, inputs, labels):
            scores = self.model(inputs)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def error(found):
        return {"error": float((found.predictions.argmax(1) != found.label_ids).mean())}

    sets = [[{"inputs": x, "labels": y} for x, y in zip(*split)] for split in (train, val)]
    more = {"logging_steps": 1, "output_dir": os.path.dirname(log) or ".", "save_strategy": "no", "max_steps": STEPS,
            "eval_strategy": "steps", "report_to": [], "gradient_accumulation_steps": PASSES, **more}
    arguments = TrainingArguments(
        per_device_train_batch_size=batch // workers // PASSES, per_device_eval_batch_size=100,
        learning_rate=LR, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0,
        eval_steps=EVERY, use_cpu=True, disable_tqdm=True, seed=seed, remove_unused_columns=False, **more)
    trainer = InOrder(Model(), arguments, train_dataset=sets[0], eval_dataset=sets[1], compute_metrics=error,
                      callbacks=[Recorder(log, **ABOUT)])
    trainer.train()
    return trainer


if __name__ == "__main__":
    {"plain": plain, "lightning": lightning, "transformers": transformers}[sys.argv[1]](
        *map(int, sys.argv[2:4]), sys.argv[4])
