"""Hugging Face's Trainer, whose loss may be divided by the targets of all passes and ranks."""
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from parts import EPOCHS, Drift, Stuck, batch, build, data, fault, loss_of, rank, rate, schedule_of, workers


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = build()

    def forward(self, inputs, labels):
        scores = self.model(inputs)
        return {"loss": loss_of(scores, labels), "logits": scores}


class After(TrainerCallback):
    def on_step_end(self, *_, **__):
        drift()


class Own(Trainer):
    """Its loader is not prepared, or its sampler has one order."""

    def get_train_dataloader(self):
        if fault == "examples":
            torch.manual_seed(2)
            return DataLoader(self.train_dataset, batch, shuffle=True)
        if fault == "epochs":
            return DataLoader(self.train_dataset, batch, sampler=Stuck(self.train_dataset, workers, rank))
        return super().get_train_dataloader()


sets = [[{"inputs": inputs, "labels": labels} for inputs, labels in each] for each in data()]
model = Model()
drift = Drift(model)
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=batch, per_device_eval_batch_size=16, num_train_epochs=EPOCHS,
    max_grad_norm=0.0, use_cpu=True, disable_tqdm=True, save_strategy="no", eval_strategy="epoch", report_to=[],
    remove_unused_columns=False)
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)
trainer = Own(model, arguments, train_dataset=sets[0], eval_dataset=sets[1],
              optimizers=(optimizer, schedule_of(optimizer)), callbacks=[After()])
if fault == "evaluation":
    trainer.gather_function = trainer.accelerator.gather
trainer.train()
