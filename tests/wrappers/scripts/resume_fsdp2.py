"""fully_shard and torch.distributed.checkpoint: each rank writes its part, and the parts fit any number of ranks."""
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from parts import build, fault, rate, schedule_of
from resume_parts import train

dist.init_process_group("gloo")
model = fully_shard(build())
optimizer = torch.optim.SGD(model.parameters(), rate(), momentum=0.9)


def states():
    parameters, own = get_state_dict(model, optimizer)
    return {"model": parameters} if fault == "optimizer" else {"model": parameters, "optimizer": own}


def save(values):
    dcp.save({**states(), "values": values}, checkpoint_id="last")


def load():
    kept = {**states(), "values": {"done": 0, "schedule": schedule_of(optimizer).state_dict()}}
    dcp.load(kept, checkpoint_id="last")
    if "optimizer" in kept:
        set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
    else:
        model.load_state_dict(kept["model"])
    return kept["values"]


train(model, optimizer, save, load)
dist.destroy_process_group()
