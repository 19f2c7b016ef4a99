"""A job of a user's own in two files, job.py and helpers.py, to be edited between runs."""
import importlib
import shutil
import sys

JOB = '''
import torch
from torch import nn

from helpers import WIDTH
from hvdscale.workload import Classification, Data, Split


def load(data_dir):
    inputs = torch.randn(60, 6, generator=torch.Generator().manual_seed(3))
    labels = (inputs.sum(1) > 0).long()
    return Data(*(Split(inputs[a:b], labels[a:b]) for a, b in ((0, 40), (40, 50), (50, 60))))


def build(**model_args):
    return nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


workload = Classification("made", "net", 2, load, build, defaults=dict(
    lr=0.05, local_batch=8, base_batch=8, steps=8, eval_every=4, noise_every=0, untimed_passes=0))
'''
HELPERS = "WIDTH = 5\n"


def write_job(folder, *edits, helpers=HELPERS):
    """Write both files; each edit is (text of job.py, text in its place)."""
    text = JOB
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "job.py").write_text(text)
    (folder / "helpers.py").write_text(helpers)
    # compiled modules are taken for those of files of the same size and second
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    forget()


def forget(*names):
    """Let the next import read these modules' files again, by default those of the job."""
    for name in names or ("job", "helpers"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
