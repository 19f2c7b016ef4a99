"""A small data set as Open Images v4 lies on disk: 9 training, 4 validation and 3 test images with labels of people."""
import io

import numpy as np

HEADER = "ImageID,Source,LabelName,Confidence"
DESCRIBED = {"/m/05_5t0l": "Landmark", "/m/0k4j": "Car", "/m/01yrx": "Cat", "/g/11bc6": '"Tea, green"',
             "/m/07yv9": "Vehicle"}
TRAINABLE = ("/m/07yv9", "/m/0k4j", "/m/01yrx")         # classes 0, 1, 2: not in the order of the descriptions
VEHICLE, CAR, CAT, LANDMARK = "/m/07yv9", "/m/0k4j", "/m/01yrx", "/m/05_5t0l"
# image -> label -> confidence, by part; the last of each part shows no trainable class
TRAIN = {
    "000026e7ee790996": {VEHICLE: 0, CAR: 1, LANDMARK: 1},
    "000062a39995e348": {CAT: 1},
    "0000c64e1253d68f": {VEHICLE: 1, CAR: 1, CAT: 0},
    "1000060e3121c730": {CAR: 1},
    "4fa8054781a4c382": {VEHICLE: 1},
    "8000000000000000": {CAT: 1, VEHICLE: 0},
    "c5a3a2bc2d1f4a11": {CAT: 1, CAR: 0, VEHICLE: 1},
    "fffffffffffffffe": {CAR: 1, CAT: 1},
    "ffffffffffffffff": {VEHICLE: 0, LANDMARK: 1},
}
VALIDATION = {"0001eeaf4aed83f9": {VEHICLE: 1, CAR: 1, CAT: 0}, "0004886b7d043cfd": {CAT: 1, VEHICLE: 0},
              "000595fe6fee6369": {CAR: 1}, "00075905539074f2": {LANDMARK: 1}}
TEST = {"000132c20b84269b": {VEHICLE: 1}, "0002ab0af02e4a77": {CAT: 1, CAR: 0}, "0002cc8afaf1b611": {CAR: 0}}
PARTS = {"train": TRAIN, "validation": VALIDATION, "test": TEST}


def write(folder):
    """All files of the data set; gives the folder."""
    lines(folder / "class-descriptions.csv", [f"{name},{title}" for name, title in DESCRIBED.items()])
    lines(folder / "classes-trainable.txt", TRAINABLE)
    for part, images in PARTS.items():
        lines(folder / f"{part}-annotations-human-imagelabels.csv", human_lines(images))
        (folder / part).mkdir()
        for number, (image, labels) in enumerate(images.items()):
            (folder / part / f"{image}.jpg").write_bytes(picture(number, labels))
    return folder


def human_lines(images):
    sources = ("verification", "crowdsource-verification")
    return [HEADER] + [f"{image},{sources[number % 2]},{label},{confidence}" for image, labels in images.items()
                       for number, (label, confidence) in enumerate(labels.items())]


def lines(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))


def picture(number, labels):
    """A JPEG of 24x20, of another grey for each number, brighter in a third for each class that it shows."""
    from PIL import Image
    pixels = np.full((20, 24, 3), 40 + 10 * number, np.uint8)
    for channel, label in enumerate(TRAINABLE):
        pixels[:, 8 * channel:8 * channel + 8, channel] += 100 * labels.get(label, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()
