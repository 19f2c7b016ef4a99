"""Lightning's Trainer: the sampler is its own, and it sets the epoch."""
import torch
from lightning import pytorch as pl
from torch.utils.data import DataLoader, Subset

from parts import Drift, EPOCHS, Stuck, batch, build, data, fault, loss_of, rank, rate, schedule_of, workers


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build()
        self.drift = Drift(self.model)

    def training_step(self, given, at):
        return loss_of(self.model(given[0]), given[1])

    def on_train_batch_end(self, *_):
        self.drift()

    def validation_step(self, given, at):
        right = (self.model(given[0]).argmax(1) == given[1]).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(given[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), rate(), momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule_of(optimizer), "interval": "step"}}


train, val = data()
own = fault in ("epochs", "examples")
sampler = Stuck(train, workers, rank) if fault == "epochs" else None
part = val if fault == "evaluation" else Subset(val, range(rank, len(val), workers))
torch.manual_seed(2)
loader = DataLoader(train, batch, sampler=sampler, shuffle=sampler is None)
trainer = pl.Trainer(accelerator="cpu", devices=workers, strategy="ddp", max_epochs=EPOCHS, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     num_sanity_val_steps=0, use_distributed_sampler=not own)
trainer.fit(Module(), loader, DataLoader(part, 16))
