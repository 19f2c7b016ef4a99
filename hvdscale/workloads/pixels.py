"""What is done to whole batches of images: colours standardised, random crops and mirroring."""
from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from ..data.splits import Draws


def pad_crop_flip(images: Tensor, draws: Draws, pad: int = 4) -> Tensor:
    """Each image padded by zeros on all sides, a crop of its first size at a uniform place, mirrored every other time.

    He et al. 2016 (arXiv:1512.03385), section 4.2, for CIFAR with 4 pixels. images, of any type, and result:
    (n, channels, height, width).
    """
    channels, height, width = images.shape[1:]
    drawn = draws.uniform(3).to(images.device)
    top, left = (drawn[:, :2] * (2 * pad + 1)).long().unbind(1)
    rows = torch.arange(height, device=images.device) + top[:, None]
    columns = torch.arange(width, device=images.device) + left[:, None]
    columns = torch.where(drawn[:, 2:] < 0.5, columns.flip(1), columns)
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]         # in a channel of the padded image
    padded = functional.pad(images, (pad,) * 4).flatten(2)
    return padded.gather(2, places.flatten(1)[:, None].expand(-1, channels, -1)).view(images.shape)


def standardised(mean: tuple[float, ...], std: tuple[float, ...], inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Grey levels 0..255 less their channel's mean, over its standard deviation: (n, channels, h, w) -> the same."""
    wide = torch.promote_types(dtype, torch.float32)            # a mean is no number of bf16
    centre, scale = _by_channel(mean, std, wide, inputs.device)
    return ((inputs.to(wide) - centre) / scale).to(dtype)


@lru_cache
def _by_channel(mean, std, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return tuple(torch.tensor(values, dtype=dtype, device=device)[:, None, None] for values in (mean, std))
