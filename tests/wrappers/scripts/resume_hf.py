"""Hugging Face's Trainer with resume_from_checkpoint; --fault position has it ignore the data that were done."""
import os

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from parts import EPOCHS, batch, build, data, fault, loss_of


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = build()

    def forward(self, inputs, labels):
        scores = self.model(inputs)
        return {"loss": loss_of(scores, labels), "logits": scores}


train, _ = data()
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=batch, num_train_epochs=EPOCHS, max_grad_norm=0.0, use_cpu=True,
    disable_tqdm=True, save_strategy="steps", save_steps=3, report_to=[], remove_unused_columns=False,
    ignore_data_skip=fault == "position", save_only_model=fault == "optimizer", save_total_limit=2)
torch.manual_seed(2)
trainer = Trainer(Model(), arguments, train_dataset=[{"inputs": a, "labels": b} for a, b in train])
trainer.train(resume_from_checkpoint=os.path.isdir("out") and bool(os.listdir("out")))
