"""Pictures in files: what is decoded and cropped, and that a damaged file is a DataError naming it, or a picture."""
import io
import math
import sys
import warnings

import numpy as np
import pytest
import torch

from hvdscale.errors import DataError
from hvdscale.workloads.large.readers import images
from hvdscale.workloads.large.readers.images import (centre_box, centre_crop, decode, random_box, random_crop,
                                                     undecodable)
from tests.conftest import DATA

Image = pytest.importorskip("PIL.Image")

WIDTH, HEIGHT = 40, 30


def made(mode="RGB", size=(WIDTH, HEIGHT), seed=0):
    """A smooth picture: left to right in red, top to bottom in green, the same blue."""
    x, y = np.meshgrid(np.linspace(20, 220, size[0]), np.linspace(220, 20, size[1]))
    blue = np.full_like(x, 60 + seed)
    return Image.fromarray(np.stack([x, y, blue], 2).astype(np.uint8)).convert(mode)


def encoded(image, kind="JPEG", **options):
    """The bytes of a file that holds the picture."""
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}) | options)
    return file.getvalue()


def written(path, content):
    path.write_bytes(content)
    return path


def read_image(path):
    """The whole picture, at full size."""
    with images.without_warnings():
        return decode(path, images.read_bytes(path), lambda width, height: (0, 0, width, height), 10**6)[0]


def pixels(image):
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_the_content_says_the_format_whatever_the_name(tmp_path, kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    read = read_image(written(tmp_path / "n01440764_1.JPEG", encoded(made(), kind, **options)))
    assert (read.mode, read.size) == ("RGB", (WIDTH, HEIGHT))
    assert abs(pixels(read) - pixels(made())).max() <= (6 if kind == "JPEG" else 0)


@pytest.mark.parametrize("mode, kind", [("L", "JPEG"), ("CMYK", "JPEG"), ("L", "PNG"), ("1", "PNG"), ("P", "PNG"),
                                        ("RGBA", "PNG"), ("LA", "PNG")])
def test_every_kind_of_colours_is_read_as_rgb(tmp_path, mode, kind):
    stored = made("RGB" if mode == "LA" else mode)
    stored = stored.convert("L").convert("LA") if mode == "LA" else stored
    read = read_image(written(tmp_path / "file", encoded(stored, kind)))
    assert (read.mode, read.size) == ("RGB", (WIDTH, HEIGHT))
    assert abs(pixels(read) - pixels(stored.convert("RGB"))).max() <= (8 if kind == "JPEG" else 0)
    if "L" in mode:
        assert (pixels(read)[..., 0] == pixels(read)[..., 2]).all()


def test_transparent_pixels_keep_their_colours(tmp_path):
    clear = made("RGBA")
    clear.putalpha(0)
    assert (pixels(read_image(written(tmp_path / "a", encoded(clear, "PNG")))) == pixels(made())).all()
    palette = made("P")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = read_image(written(tmp_path / "b", encoded(palette, "PNG", transparency=bytes(range(256)))))
    assert (pixels(read) == pixels(palette.convert("RGB"))).all()


@pytest.mark.parametrize("content, wanted", [(257, 1), (65535, 255), (255, 0)])
def test_of_16_bits_the_upper_8_are_kept(tmp_path, content, wanted):
    deep = Image.fromarray(np.full((4, 5), content, np.uint16))
    assert (pixels(read_image(written(tmp_path / "file", encoded(deep, "PNG")))) == wanted).all()


def test_an_orientation_in_exif_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6                        # to be turned by a quarter
    assert read_image(written(tmp_path / "file", encoded(made(), exif=exif))).size == (WIDTH, HEIGHT)


# crops

def drawn(seed, n=1):
    return [torch.rand(40, generator=torch.Generator().manual_seed(seed + i), dtype=torch.float64).tolist()
            for i in range(n)]


@pytest.mark.parametrize("width, height", [(500, 375), (375, 500), (64, 64), (90, 80)])
def test_a_random_box_has_the_published_area_and_ratio_and_fits(width, height):
    boxes = np.array([random_box(width, height, draws) for draws in drawn(0, 2000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0 and boxes[:, 2].max() <= width and boxes[:, 3].max() <= height
    area, ratio, rounding = w * h / (width * height), w / h, 0.04
    assert 0.08 - rounding < area.min() < 0.12 and 0.9 < area.max() <= 1
    assert 3 / 4 - rounding < ratio.min() < 0.8 and 1.25 < ratio.max() < 4 / 3 + rounding
    assert np.log(ratio[area < 0.3]).mean() == pytest.approx(0, abs=0.03)         # even in the logarithm, where all fit
    assert len(set(boxes[:, 0])) > 10 and len(set(boxes[:, 1])) > 10


@pytest.mark.parametrize("width, height, w, h", [(400, 30, 40, 30), (30, 400, 30, 40), (1, 1, 1, 1), (1, 50, 1, 4 / 3)])
def test_a_box_that_never_fits_is_the_middle_with_the_nearest_ratio(width, height, w, h):
    always_whole = [1 - 1e-9, 0.5, 0.3, 0.3] * 10
    box = random_box(width, height, always_whole if width > 1 or height > 1 else [0.999] * 40)
    assert box == pytest.approx(((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2))


def test_the_first_draw_that_fits_is_taken():
    draws = [0.99, 0.99, 0.0, 0.0] + [0.1, 0.5, 0.0, 0.99] + [0.9] * 32
    left, upper, right, lower = random_box(100, 50, draws)
    assert (left, lower) == (0, 50) and right == lower - upper == round(math.sqrt(5000 * (0.08 + 0.1 * 0.92)))


@pytest.mark.parametrize("width, height", [(500, 375), (300, 300), (256, 800)])
def test_the_evaluated_box_is_the_middle_of_the_picture_resized_to_256(width, height):
    left, upper, right, lower = centre_box(width, height)
    resized = min(width, height) / 256
    assert (right - left, lower - upper) == pytest.approx((224 * resized, 224 * resized))
    assert ((left + right) / 2, (upper + lower) / 2) == pytest.approx((width / 2, height / 2))


def test_an_evaluated_picture_is_that_of_resizing_and_then_cropping(tmp_path):
    """As the published pipelines do it, one step after the other."""
    photo = written(tmp_path / "file", encoded(made(size=(400, 320)), "PNG"))
    resized = Image.open(photo).resize((320, 256), Image.Resampling.BILINEAR)
    left, upper = (320 - 224) // 2, (256 - 224) // 2
    wanted = np.asarray(resized.crop((left, upper, left + 224, upper + 224))).transpose(2, 0, 1).astype(int)
    found = centre_crop(photo, 224)
    assert found.dtype == torch.uint8 and found.shape == (3, 224, 224) and found.is_contiguous()
    assert abs(found.numpy().astype(int) - wanted).max() <= 1


def test_half_of_the_random_crops_are_flipped(tmp_path):
    photo = written(tmp_path / "file", encoded(made(), "PNG"))
    torch.manual_seed(0)
    rising = [bool(crop[0, 4, -1] > crop[0, 4, 0]) for crop in (random_crop(photo, 8) for _ in range(400))]
    assert 0.4 < sum(rising) / 400 < 0.6


def test_a_crop_takes_as_many_numbers_whether_it_fits_or_not(tmp_path):
    after = []
    for size in ((40, 30), (400, 4)):
        torch.manual_seed(0)
        random_crop(written(tmp_path / "file", encoded(made(size=size), "PNG")), 8)
        after.append(torch.rand(1))
    assert after[0] == after[1]


@pytest.mark.parametrize("side", [16, 50, 100])
def test_a_jpeg_decoded_at_a_fraction_gives_the_same_picture(tmp_path, side):
    """Against the whole picture, cut and resized."""
    picture = made(size=(803, 601))
    picture.paste((250, 10, 200), (300, 200, 480, 430))
    photo = written(tmp_path / "file", encoded(picture))
    whole = read_image(photo)
    for choose in (centre_box, lambda width, height: (101, 57, 733, 555)):
        box = choose(*whole.size)
        wanted = np.asarray(whole.resize((side, side), Image.Resampling.BILINEAR, box)).transpose(2, 0, 1).astype(int)
        difference = abs(images._cropped(photo, side, choose).numpy().astype(int) - wanted)
        assert difference.mean() < 1 and np.quantile(difference, 0.99) < 12


def test_a_jpeg_is_decoded_at_no_less_than_twice_the_side():
    photo = encoded(made(size=(512, 512)))
    for side, decoded in [(512, 512), (129, 512), (128, 256), (65, 256), (64, 128), (32, 64), (1, 64)]:
        image, box = decode("file", photo, lambda width, height: (0, 0, width, height), side)
        assert image.size == (decoded, decoded) and box == (0, 0, decoded, decoded)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 3)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_tiny_or_thin_picture_is_cropped(tmp_path, size, kind):
    photo = written(tmp_path / "file", encoded(made(size=size), kind))
    for crop in (centre_crop, random_crop):
        assert crop(photo, 7).shape == (3, 7, 7)


# what is damaged

def refused(path, content):
    with pytest.raises(DataError) as caught:
        centre_crop(written(path, content), 8)
    assert str(caught.value).startswith(f"{path}: cannot be decoded, {len(content)} bytes: ")
    return str(caught.value)


def test_what_is_no_picture_is_named_with_the_formats_that_are(tmp_path, worded):
    worded(refused(tmp_path / "file", b""))
    for content in (b"<html>404</html>", b"\0" * 5000, encoded(made(), "GIF"), encoded(made(), "TIFF")):
        assert "bytes: no JPEG, PNG, WEBP or BMP" in refused(tmp_path / "file", content)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_a_truncated_file_is_named_with_its_size(tmp_path, kind):
    whole = encoded(made(), kind)
    for share in (0.1, 0.3, 0.5, 0.8):
        refused(tmp_path / "file", whole[:int(share * len(whole))])


def test_a_header_of_too_many_pixels_is_refused_before_they_are_decoded(tmp_path, worded):
    bomb = bytearray(encoded(Image.new("1", (8, 8)), "BMP"))
    bomb[18:26] = (20000).to_bytes(4, "little") * 2
    assert "exceeds limit" in refused(tmp_path / "file", bytes(bomb))            # Pillow's own refusal
    bomb[18:26] = (10000).to_bytes(4, "little") * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worded(refused(tmp_path / "file", bytes(bomb)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_any_damage_gives_a_data_error_or_a_picture(tmp_path, kind):
    whole = encoded(made(size=(48, 36)), kind, **{"progressive": True} if kind == "JPEG" else {})
    draw = np.random.default_rng(len(whole))
    outcomes = set()
    for _ in range(150):
        content = damaged(bytearray(whole), draw)
        try:
            assert random_crop(written(tmp_path / "file", content), 8).shape == (3, 8, 8)
            outcomes.add("picture")
        except DataError as error:
            assert str(error).startswith(f"{tmp_path / 'file'}: ") and "\n" not in str(error)
            outcomes.add("error")
    assert "error" in outcomes


def damaged(content, draw):
    """The bytes with some flipped, cut, swapped or repeated; half of the time in the first of them, the header."""
    span = len(content) if draw.random() < 0.5 else min(len(content), 64)
    for _ in range(draw.integers(1, 6)):
        a, b = sorted(draw.integers(0, span, 2).tolist())
        match draw.integers(0, 5):
            case 0:
                content[a:a + 1] = bytes([draw.integers(256)])
            case 1:
                content[a:b] = content[a:b][::-1]
            case 2:
                del content[a:b]
            case 3:
                content[a:a] = content[a:b]
            case 4:
                content[a:b] = draw.bytes(b - a)
    return bytes(content)


def test_undecodable_files_are_found_with_any_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "BLOCK", 3)
    whole = encoded(made())
    broken = {2: whole[:300], 5: b"", 10: b"<html>"}
    paths = [written(tmp_path / f"{i}", broken.get(i, whole)) for i in range(11)]
    found = undecodable(paths.__getitem__, 11, 1)
    assert sorted(found) == sorted(broken) and all(found[i].startswith(f"{paths[i]}: cannot be dec") for i in broken)
    assert undecodable(paths.__getitem__, 11, 4) == found


def test_what_is_found_undecodable_is_what_a_crop_refuses(tmp_path):
    draw = np.random.default_rng(0)
    whole = encoded(made(size=(64, 48)))
    paths = [written(tmp_path / f"{i}", damaged(bytearray(whole), draw)) for i in range(60)]
    found = undecodable(paths.__getitem__, 60, 1)
    assert 0 < len(found) < 60
    for i, path in enumerate(paths):
        for crop in (lambda: centre_crop(path, 8), lambda: random_crop(path, 60)):
            try:
                crop()
                assert i not in found
            except DataError as error:
                assert i in found and str(error) == found[i]


def test_a_file_that_cannot_be_opened_is_not_taken_for_an_undecodable_one(tmp_path):
    with pytest.raises(DataError, match="none: cannot be read"):
        undecodable(lambda i: tmp_path / "none", 1, 1)


def test_without_pillow_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match="pip install pillow"):
        images.pillow()


@pytest.mark.skipif(not (DATA / "imagenet_sample").is_dir(), reason="needs the photographs of imagenet_sample")
def test_real_photographs_are_cropped():
    """Two of the seventy are grey."""
    paths = sorted((DATA / "imagenet_sample").glob("*/*.JPEG"))
    for path in paths:
        assert centre_crop(path, 64).float().std() > 5
    assert len(paths) == 70
