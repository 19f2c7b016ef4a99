"""Lightning: ckpt_path="last"."""
import torch
from lightning import pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from parts import EPOCHS, batch, build, data, fault, loss_of, rate, schedule_of, workers


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build()

    def training_step(self, given, at):
        return loss_of(self.model(given[0]), given[1])

    def on_train_start(self):
        if fault == "optimizer":
            for one in self.trainer.optimizers:
                one.state.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), rate(), momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule_of(optimizer), "interval": "step"}}


train, _ = data()
every = {"every_n_train_steps": 3} if fault == "position" else {"every_n_epochs": 1}
trainer = pl.Trainer(accelerator="cpu", devices=workers, strategy="ddp", max_epochs=EPOCHS, logger=False,
                     enable_progress_bar=False, enable_model_summary=False, default_root_dir=".",
                     callbacks=[ModelCheckpoint("kept", save_last=True, **every)])
trainer.fit(Module(), DataLoader(train, batch, shuffle=True), ckpt_path="last")
