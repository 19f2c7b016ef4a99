"""GPT-2 from a config, trained by Hugging Face's Trainer on sequences of unequal lengths."""
import argparse
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
batch = parser.parse_args().batch
random.seed(0)
texts = [[random.randrange(3, 60) for _ in range(random.randrange(4, 12))] for _ in range(64)]


def collate(rows):
    """Pads; what is padded has the label -100, which no loss counts."""
    length = max(map(len, rows))
    padded = [row + [0] * (length - len(row)) for row in rows]
    labels = [row + [-100] * (length - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (length - len(row)) for row in rows]
    given = {"input_ids": padded, "attention_mask": mask, "labels": labels}
    return {name: torch.tensor(values) for name, values in given.items()}


torch.manual_seed(1)
none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, **none))
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=batch, num_train_epochs=1, max_grad_norm=0.0, use_cpu=True,
    disable_tqdm=True, save_strategy="no", report_to=[], optim="sgd", learning_rate=0.1, remove_unused_columns=False)
Trainer(model, arguments, train_dataset=texts, data_collator=collate).train()
