"""Precisions: the types that each one uses, and the loss scale that fp16 needs.

    fp64, fp32    parameters, gradients and arithmetic alike
    tf32          fp32, but a GPU rounds the factors of products and convolutions to 10 bits, which is faster
    bf16, fp16    mixed precision: fp32 parameters, gradients and optimizer; the model computes under torch's autocast
"""

import contextlib
import os
import warnings
from collections.abc import Iterator

import torch

from ..plan.plan import Plan
from ..system.cores import processor_name

PARAMETERS = {"fp64": torch.float64, **dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), torch.float32)}
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def set_arithmetic(plan: Plan, device: torch.device) -> None:
    """Set torch's GPU arithmetic to the plan's; by default torch computes fp32 convolutions in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
    if (plan.deterministic or plan.exact) and device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")         # read before the first product
        torch.use_deterministic_algorithms(True)


def describe_arithmetic(device: torch.device) -> str:
    """What determines the bits of a pass beside the threads: torch, its libraries, and the processor."""
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__}, {processor_name()}, {torch.backends.cpu.get_cpu_capability()}"


@contextlib.contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """GPU kernels that give the same bits again, wherever there are any."""
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deterministic.*")          # of an operation that has none
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def autocast(precision: str, device: torch.device):
    """The context in which the model and its loss are computed."""
    return torch.autocast(device.type, AUTOCAST[precision]) if precision in AUTOCAST else contextlib.nullcontext()


class LossScale:
    """The factor on the loss before backward, so that small gradients do not vanish in fp16 (Micikevicius et al. 2018,
    arXiv:1710.03740, section 3.2). If the reduced gradient is not finite, it is halved and the update skipped; after
    ``growth_steps`` finite steps it is doubled. All ranks see the same gradient, so all agree."""

    least, growth_steps = 2.0**-14, 2000

    def __init__(self, first: float):
        self.value, self.good_steps, self.left_out = first, 0, 0

    def accepts(self, gradients: torch.Tensor) -> bool:
        """Whether these gradients, summed over the workers and still scaled, make an update; adapts the next scale."""
        if self.value > self.least and not gradients.isfinite().all():    # at ``least`` an overflow is divergence
            self.value, self.good_steps, self.left_out = self.value / 2, 0, self.left_out + 1
            return False
        self.good_steps += 1
        if self.good_steps == self.growth_steps:
            self.value, self.good_steps = self.value * 2, 0
        return True
