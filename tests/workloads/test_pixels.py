"""Augmentation of batches: what a picture becomes, that it is uniform, and that its batch does not show."""
from collections import Counter

import numpy as np
import pytest
import torch

from hvdscale.data.splits import Draws
from hvdscale.plan.shards import Visits
from hvdscale.workloads import cifar
from hvdscale.workloads.large import imagenet
from hvdscale.workloads.pixels import pad_crop_flip

PICTURES = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (7, 3, 6, 5), dtype=np.uint8))


def visits(indices, epoch=0, seed=0):
    return Visits(np.asarray(indices), np.full(len(indices), epoch), seed)


def by_hand(picture, draws, pad):
    """A picture's crop, pixel by pixel."""
    channels, height, width = picture.shape
    top, left = (int(u * (2 * pad + 1)) - pad for u in draws[:2])
    result = torch.zeros_like(picture)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                column = width - 1 - x if draws[2] < 0.5 else x
                if 0 <= y + top < height and 0 <= column + left < width:
                    result[c, y, x] = picture[c, y + top, column + left]
    return result


@pytest.mark.parametrize("pad", [0, 1, 4])
def test_a_picture_is_padded_cropped_and_mirrored_as_its_draws_say(pad):
    for seed in range(5):
        drawn = Draws(visits(range(7), seed=seed)).uniform(3)
        wanted = torch.stack([by_hand(x, u, pad) for x, u in zip(PICTURES, drawn.tolist())])
        assert torch.equal(pad_crop_flip(PICTURES, Draws(visits(range(7), seed=seed)), pad), wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_type_and_shape_stay_and_the_pictures_are_left_as_they_were(dtype):
    pictures = PICTURES.to(dtype)
    before = pictures.clone()
    augmented = pad_crop_flip(pictures, Draws(visits(range(7))))
    assert (augmented.dtype, augmented.shape, augmented.is_contiguous()) == (dtype, pictures.shape, True)
    assert torch.equal(pictures, before) and not torch.equal(augmented, before)
    assert pad_crop_flip(pictures[:0], Draws(visits([]))).shape == (0, 3, 6, 5)


def test_all_crops_are_as_frequent_and_every_other_is_mirrored():
    """The 81 places of 32x32 in 40x40, in 8,100 pictures that say where they were cut."""
    pictures = 1 + torch.arange(1024).view(1, 1, 32, 32).expand(8100, -1, -1, -1)       # 0 is padding
    cut = pad_crop_flip(pictures, Draws(visits(range(8100))))
    centre = cut[:, 0, 16, 15:17] - 1                                  # never padding
    mirrored = centre[:, 0] > centre[:, 1]
    tops, lefts = centre[:, 0] // 32 - 12, centre[:, 0] % 32 - torch.where(mirrored, 12, 11)
    counts = Counter(zip(tops.tolist(), lefts.tolist()))
    assert set(counts) == {(top, left) for top in range(9) for left in range(9)}
    chi2 = sum((count - 100)**2 / 100 for count in counts.values())
    assert 40 < chi2 < 130                                              # 80 degrees of freedom: mean 80, sd 12.6
    assert abs(int(mirrored.sum()) - 4050) < 4 * 45                     # sd 45


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prepare, channels", [
    (imagenet.prepare, [(255 * 0.485, 255 * 0.229), (255 * 0.456, 255 * 0.224), (255 * 0.406, 255 * 0.225)]),
    *((cifar.workload(name, "alexnet").prepare, [*zip(layout.mean, layout.std)])
      for name, layout in cifar.LAYOUTS.items())], ids=["imagenet", *cifar.LAYOUTS])
def test_grey_levels_are_standardised_by_channel(prepare, channels, dtype):
    pictures = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 3, 16, 16)
    prepared = prepare(pictures, dtype)
    assert prepared.dtype == dtype
    for channel, (mean, deviation) in enumerate(channels):
        wanted = (pictures[:, channel].double() - mean) / deviation
        torch.testing.assert_close(prepared[:, channel].double(), wanted, rtol=0, atol=torch.finfo(dtype).eps * 8)
