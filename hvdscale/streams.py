"""Random streams keyed by what they are for, never by rank: a worker draws what any other would at the same place."""
from __future__ import annotations

import hashlib


def stream_key(seed: int, purpose: str, *where: int) -> int:
    """The key of a stream, 63 bits: the same for the same seed, purpose and place on every machine."""
    text = "/".join([str(seed), purpose, *map(str, where)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
