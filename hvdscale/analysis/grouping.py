"""Grouping of items by a key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in their order; keys in order of first appearance."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def rows_of_each(keys: np.ndarray) -> dict[int, np.ndarray]:
    """The rows at which a column of integers has each of its values, in their order; the values from the least on."""
    order = np.argsort(keys, kind="stable")
    values, first = np.unique(keys[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, first[1:])))
