"""Values written as TOML are read back as they were."""
import math
import random
import string

from hvdscale.formatting.toml import key_as_toml, value_as_toml
from hvdscale.plan.settings import tomllib


def test_texts_of_any_characters_are_read_back_as_keys_and_values():
    drawn = random.Random(1)
    characters = string.printable + "\\\\''\"\"\x7f\u00e9\u2028\ud7ff"
    for _ in range(5000):
        text = "".join(drawn.choice(characters) for _ in range(drawn.randrange(8)))
        value = {"a b": [text, 1.5, True, math.inf, 0.1 + 0.2], text: {}}
        assert tomllib.loads(f"{key_as_toml(text)} = {value_as_toml(value)}") == {text: value}


def test_a_pattern_is_written_as_it_is():
    assert value_as_toml(r"b(\d+)") == r"'b(\d+)'" and value_as_toml(r"b'(\d+)") == r'''"b'(\\d+)"'''
