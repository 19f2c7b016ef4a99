"""Operations on whole batches of images: standardization, random crops and flips; and batches on the meta device."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from ..data.splits import Batch, Draws


def meta_images(channels: int, side: int) -> Batch:
    """A labelled image of bytes on the meta device: shapes without values, to count a model's operations."""
    return Batch(torch.empty(1, channels, side, side, dtype=torch.uint8, device="meta"),
                 torch.empty(1, dtype=torch.int64, device="meta"))


def pad_crop_flip(images: Tensor, draws: Draws, pad: int = 4) -> Tensor:
    """Zeros around each image, a crop of its size at a uniform position, every other one mirrored (He et al. 2016,
    arXiv:1512.03385, section 4.2, with 4 pixels for CIFAR)."""
    channels, height, width = images.shape[1:]
    drawn = draws.uniform(3).to(images.device)
    top, left = (drawn[:, :2] * (2 * pad + 1)).long().unbind(1)
    rows = torch.arange(height, device=images.device) + top[:, None]
    columns = torch.arange(width, device=images.device) + left[:, None]
    columns = torch.where(drawn[:, 2:] < 0.5, columns.flip(1), columns)
    positions = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]      # in a channel of the padded image
    padded = functional.pad(images, (pad,) * 4).flatten(2)
    return padded.gather(2, positions.flatten(1)[:, None].expand(-1, channels, -1)).view(images.shape)


def standardised(mean: tuple[float, ...], std: tuple[float, ...], inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Grey levels 0..255 minus their channel's mean, divided by its standard deviation; shape (n, channels, h, w)."""
    wide = torch.promote_types(dtype, torch.float32)            # bf16 cannot represent the means
    centre, scale = _by_channel(mean, std, wide, inputs.device)
    return ((inputs.to(wide) - centre) / scale).to(dtype)


@lru_cache
def _by_channel(mean, std, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor(values, dtype=dtype, device=device)[:, None, None] for values in (mean, std))
