"""The same job for hvdscale-train: data set and model are those of the script; loop, sampler and DDP are gone."""
from ddp_before import Digits, Net
from torch.nn.functional import cross_entropy

from hvdscale.modules import convert
from hvdscale.workload import Data, MapSplit, Workload


class Job(Workload):
    dataset, model = "digits", "net"
    metrics = {"cross_entropy": "min", "error": "min"}
    defaults = dict(optimizer="momentum", momentum=0.9, weight_decay=1e-4, decay_norm_and_bias=True, lr=0.02,
                    base_batch=16, local_batch=16, lr_rule="linear", epochs=20.0, target="val/error<0.05")

    def load(self, data_dir):
        return Data(MapSplit(Digits("train", shift=True)), MapSplit(Digits("val")), MapSplit(Digits("test")),
                    train_eval=MapSplit(Digits("train")))

    def build(self, width=64):
        return convert(Net(width))

    def loss(self, model, batch):
        return cross_entropy(model(batch["image"]), batch["digit"], reduction="sum"), len(batch["digit"])

    def measure(self, model, batch):
        logits, digits = model(batch["image"]), batch["digit"]
        return {"cross_entropy": (cross_entropy(logits, digits, reduction="sum"), len(digits)),
                "error": ((logits.argmax(1) != digits).sum(), len(digits))}


workload = Job()
