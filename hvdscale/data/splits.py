"""The examples of a workload: splits held in memory or read one by one, and the batches taken from them.

    Data(train=Split(inputs, labels, augment), val=Split(...))       tensors in memory
    Data(train=MapSplit(dataset, collate), val=MapSplit(...))        any map-style torch Dataset
    batch = to_device(split.take(visits), device)

All randomness of an example depends only on (seed, epoch, example), so it is the same at any worker count. The
process's global random generators, which a user's code draws from, are seeded, kept and restored here.
"""
from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from ..errors import DataError, HvdscaleError, StoppedError, describe_raised
from ..plan.shards import Visits, stream_key
from ..system.source import digest_of

AUGMENTATION = "augmentation"       # the purpose that keys the random streams here
ALIGNMENT = 64                      # bytes, of torch's tensors: arithmetic may depend on it
AT_ONCE_BYTES, MOST_AT_ONCE = 1 << 17, 32       # of small batches
GOLDEN = 0.6180339887498949
CPU = torch.device("cpu")


def seed_generators(key: int, gpus: bool = True) -> None:
    """Seed the generators with this key; without ``gpus`` torch's only on the CPU."""
    (torch if gpus else torch.default_generator).manual_seed(key)
    np.random.seed(key % 2**32)
    random.seed(key)


def random_state(device: torch.device = CPU) -> dict:
    """The state of the generators, including the GPU's if the device is one: plain values and tensors."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    numbers = (kind, torch.from_numpy(keys.astype(np.int64)), *rest)
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": numbers, "python": random.getstate()}


def set_random_state(state: dict, device: torch.device = CPU) -> None:
    """Restore the state from ``random_state``; the generator of a missing device is left alone."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


class OwnGenerators:
    """A context that restores the generators; ``moved()`` says whether they have been drawn from."""

    def __init__(self, device: torch.device = CPU):
        self._device = device

    def __enter__(self) -> OwnGenerators:
        self._before = random_state(self._device)
        return self

    def moved(self) -> bool:
        return not all(map(np.array_equal, _flatten(self._before), _flatten(random_state(self._device))))

    def __exit__(self, *_: object) -> None:
        set_random_state(self._before, self._device)


def _flatten(state: dict) -> list:
    return [state["torch"], [] if state["cuda"] is None else state["cuda"], state["numpy"][1], state["numpy"][2:],
            state["python"][1]]


@dataclass(frozen=True)
class Batch:
    """Inputs and labels, of n examples each; unpacks as ``inputs, labels = batch``."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.inputs, self.labels))


class Draws:
    """Random numbers for the augmentation of a batch: each visit to an example has its own stream."""

    def __init__(self, visits: Visits):
        self._visits, self._calls = visits, 0

    def uniform(self, k: int) -> Tensor:
        """k numbers in [0, 1) for each example: float64, shape (n, k); each call draws new ones. They come from
        SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators") at k positions for each
        example; every epoch and call has its own stream."""
        indices, epochs, seed = self._visits
        known, where = np.unique(epochs, return_inverse=True)
        keys = [stream_key(seed, AUGMENTATION, epoch, self._calls) for epoch in known.tolist()]
        self._calls += 1
        place = (indices.astype(np.uint64) * np.uint64(k))[:, None] + np.arange(1, k + 1, dtype=np.uint64)
        z = np.array(keys, np.uint64)[where][:, None] + place * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        return torch.from_numpy((z >> np.uint64(11)) * 2.0**-53)


@dataclass(frozen=True)
class Split:
    """Examples held in memory as two tensors.

    inputs   (n, ...), of any type
    labels   (n, ...): class numbers, values to predict, or whatever the loss takes
    augment  (inputs of a batch, Draws) -> inputs, for training; must draw only from the Draws
    """

    inputs: Tensor
    labels: Tensor
    augment: Callable[[Tensor, Draws], Tensor] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        if len(self.inputs) != len(self.labels):
            raise DataError(f"a split has {len(self.inputs)} inputs and {len(self.labels)} labels; give one for each")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, visits: Visits) -> Batch:
        """The visited examples, in this order."""
        where = torch.from_numpy(np.ascontiguousarray(visits.indices))
        inputs = self.inputs.index_select(0, where)         # for bytes several times as fast as self.inputs[where]
        if self.augment is not None:
            inputs = self.augment(inputs, Draws(visits))
        return Batch(inputs, self.labels.index_select(0, where))

    def take_each(self, visits: Iterable[Visits]) -> Iterator[Batch]:
        """The batches of these visits, one after another: for small ones the examples of several are copied at once."""
        visits, nbytes = iter(visits), [tensor[0].nbytes for tensor in (self.inputs, self.labels) if len(tensor)]
        for first in visits:
            size = len(first.indices)
            alone = self.augment is not None or any(size * each % ALIGNMENT for each in nbytes)
            most = 1 if alone else max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // max(1, size * sum(nbytes))))
            few = [first, *islice(visits, most - 1)]
            if len(few) == 1 or any(len(other.indices) != size for other in few):
                yield from map(self.take, few)
                continue
            taken = self.take(Visits(*map(np.concatenate, zip(*(one[:2] for one in few))), first.seed))
            yield from map(Batch, taken.inputs.split(size), taken.labels.split(size))

    def first(self, examples: int) -> Split:
        return replace(self, inputs=self.inputs[:examples], labels=self.labels[:examples])

    def plain(self) -> Split:
        """The same examples without augmentation."""
        return self if self.augment is None else replace(self, augment=None)


@dataclass(frozen=True)
class MapSplit:
    """The examples of a map-style torch Dataset (``len`` and ``[i]``), read when needed, if set by loader_workers.

    dataset   returns what torch's default_collate, or ``collate``, takes: tensors, numbers, tuples, dicts. It may draw
              from torch's, numpy's or Python's global generators, which are seeded before each example
    collate   list of examples -> batch, without random numbers. None: torch's default_collate
    examples  the number of examples used; None: all
    """

    dataset: object
    collate: Callable[[list], object] | None = None
    examples: int | None = None

    def __post_init__(self):
        lacks = [name for name in ("__len__", "__getitem__") if not hasattr(self.dataset, name)]
        if lacks or isinstance(self.dataset, IterableDataset):
            raise DataError(f"MapSplit needs a map-style data set, with len() and [i]; a "
                            f"{type(self.dataset).__name__} is not one")

    def __len__(self) -> int:
        return len(self.dataset) if self.examples is None else self.examples

    def take(self, visits: Visits):
        """The visited examples, collated; raises DataError naming the example that cannot be read."""
        if type(self.dataset) is TensorDataset and self.collate is None:
            where = torch.from_numpy(np.ascontiguousarray(visits.indices))
            return [tensor[where] for tensor in self.dataset.tensors]
        with OwnGenerators():
            examples = [self._read(int(i), int(epoch), visits.seed) for i, epoch in zip(*visits[:2])]
            try:
                return (self.collate or default_collate)(examples)
            except HvdscaleError:
                raise
            except (Exception, SystemExit) as error:
                hint = "" if self.collate else "; if examples differ in length, give MapSplit a collate function"
                some = ", ".join(map(str, visits.indices[:4].tolist())) + (", ..." if len(visits.indices) > 4 else "")
                raise DataError(f"examples {some} of {type(self.dataset).__name__} cannot form a batch: "
                                f"{describe_raised(error)}{hint}") from None

    def count_tokens(self) -> int | None:
        """The tokens that the loss counts, by the data set's ``count_tokens(examples)``; None: it counts examples."""
        count = getattr(self.dataset, "count_tokens", None)
        return None if count is None else int(count(len(self)))

    def first(self, examples: int) -> MapSplit:
        return replace(self, examples=min(examples, len(self)))

    def _read(self, index: int, epoch: int, seed: int):
        seed_generators(stream_key(seed, AUGMENTATION, epoch, index), gpus=False)
        try:
            return self.dataset[index]
        except HvdscaleError:
            raise
        except (Exception, SystemExit) as error:
            what = f"example {index} of {type(self.dataset).__name__}"
            raise DataError(f"{what} cannot be read: {describe_raised(error)}") from None


@dataclass(frozen=True)
class Data:
    """A data set's splits; each is a Split, a MapSplit, or an object with the same len, take and first.

    test        by default empty
    train_eval  the training examples for evaluation, without augmentation; by default ``train``, without its augment
                if it is a Split
    model_args  model arguments that the data determines, such as {"vocabulary": 8000}
    record      what defines the problem and is not an option, such as {"missing": ["data_batch_5.bin"]}: plain values,
                the same on all ranks, kept in the log
    notes       lines for the user
    """

    train: Split | MapSplit
    val: Split | MapSplit
    test: Split | MapSplit | None = None
    train_eval: Split | MapSplit | None = None
    model_args: Mapping = field(default_factory=dict)
    record: Mapping = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        if self.test is None and hasattr(self.val, "first"):
            object.__setattr__(self, "test", self.val.first(0))
        for name in ("train", "val", "test"):
            _check_split(name, getattr(self, name))
        if self.train_eval is not None:
            _check_split("train_eval", self.train_eval)
            if len(self.train_eval) != len(self.train):
                raise DataError(f"train_eval has {len(self.train_eval)} examples and train {len(self.train)}; both "
                                "must have the same ones")
        if len(self.train) == 0:
            raise DataError("the training split is empty; there is nothing to train on")

    def with_train_subset(self, examples: int | None) -> Data:
        """The same data with only the first training examples; raises DataError if there are fewer."""
        if examples is None:
            return self
        if examples > len(self.train):
            raise DataError(f"train_subset = {examples}: the training set has {len(self.train)} examples")
        return replace(self, train=self.train.first(examples),
                       train_eval=self.train_eval and self.train_eval.first(examples))

    @property
    def train_tokens(self) -> int | None:
        """The tokens of the training set that the loss counts; None: it counts examples."""
        count = getattr(self.train, "count_tokens", None)
        return None if count is None else count()

    @cached_property
    def digests(self) -> dict[str, dict]:
        """What the log says of each split, so that other data is noticed; see digest_split."""
        return {name: digest_split(getattr(self, name)) for name in ("train", "val", "test")}

    def evaluated(self, train_examples: int) -> dict[str, Split | MapSplit]:
        """The splits for evaluation, by name; of train only this number of examples, without augmentation."""
        train = self.train_eval or (self.train.plain() if hasattr(self.train, "plain") else self.train)
        return {"train": train.first(train_examples), "val": self.val, "test": self.test}


def _check_split(name: str, split) -> None:
    methods = ("__len__", "take", "first")
    held = [split.inputs, split.labels] if getattr(type(split), "take", None) is Split.take else []
    if not all(isinstance(part, Tensor) for part in held) or not all(hasattr(split, method) for method in methods):
        kinds = " and ".join(type(part).__name__ for part in held) or type(split).__name__
        raise DataError(f"the {name} split is of type {kinds}; give Split(inputs, labels) of two tensors, such as "
                        f"torch.as_tensor(array), or wrap a data set: {name}=MapSplit(dataset)")


def to_device(batch, device: torch.device, dtype: torch.dtype | None = None):
    """The batch on the device: tensors, also inside tuples, lists, dicts and dataclasses, and objects with ``.to``;
    floating-point tensors in this type, None: in their own."""
    if isinstance(batch, Tensor):
        return batch.to(device, dtype if batch.is_floating_point() and dtype else batch.dtype, non_blocking=True)
    if type(batch) is Batch:
        return Batch(to_device(batch.inputs, device, dtype), to_device(batch.labels, device, dtype))
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(part, device, dtype) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device, dtype) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(part, device, dtype) for part in batch)
    if dataclasses.is_dataclass(batch):
        return replace(batch, **{f.name: to_device(getattr(batch, f.name), device, dtype)
                                 for f in dataclasses.fields(batch) if f.init})
    return batch


def tensors_of(batch, name: str = "the batch") -> Iterator[tuple[str, Tensor]]:
    """The tensors that ``to_device`` moves, each with its path in the batch."""
    if isinstance(batch, Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from tensors_of(part, f"{name}[{key!r}]")
    elif isinstance(batch, (tuple, list)):
        for number, part in enumerate(batch):
            yield from tensors_of(part, f"{name}[{number}]")
    elif hasattr(batch, "__dict__"):
        for key, part in vars(batch).items():
            yield from tensors_of(part, f"{name}.{key}")


def digest_split(split) -> dict:
    """How many examples a split has, and the digests of the first and the last, read as an evaluation would.

        digest_split(data.train)        {"examples": 60000, "first": "5f1d0c9a7be2", "last": "0c4e1a2b9d37"}

    An example that cannot be read, that differs when it is read again, or that holds objects of unknown types is None:
    unknown. Of numbers that are not whole a weighted sum counts, to three digits: processors differ in the last bits.
    """
    plain, found = split.plain() if hasattr(split, "plain") else split, {"examples": len(split)}
    for name, at in (("first", 0), ("last", len(split) - 1)) if len(split) else ():
        visits = Visits(np.array([at]), np.array([0]), 0)
        try:
            with OwnGenerators():
                once, again = (digest_of(outline(plain.take(visits))) for _ in range(2))
            found[name] = once if once == again else None
        except StoppedError:
            raise
        except Exception:                   # the data set is the user's; the run says what is wrong if it matters
            found[name] = None
    return found


def outline(value):
    """Plain values that say what an example is; raises TypeError for objects of unknown types."""
    if isinstance(value, (bool, int, str, bytes, type(None))):
        return value
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    if isinstance(value, Mapping):
        return [(outline(key), outline(part)) for key, part in value.items()]
    if isinstance(value, (tuple, list)):
        return [*map(outline, value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, outline(getattr(value, field.name))) for field in dataclasses.fields(value)]
    if not isinstance(value, (np.ndarray, np.generic, float, complex)):
        raise TypeError(f"{type(value).__name__} is of no known type")
    array = np.asarray(value)
    if array.dtype.kind == "O":
        return [array.shape, *map(outline, array.ravel().tolist())]
    if array.dtype.kind not in "fc":
        return array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()
    flat = np.ravel(array).astype(complex if array.dtype.kind == "c" else float).view(float)
    weights = 1 + np.modf(np.arange(1, len(flat) + 1) * GOLDEN)[0]          # so that the order counts
    with np.errstate(all="ignore"):
        norm = np.linalg.norm(flat)
        return array.dtype.kind, array.shape, f"{norm:.3g}", round(float(flat @ weights / norm), 3) + 0.0


def refuse_not_finite(batch, visits: Visits, where: str) -> None:
    """Raise DataError, with name, value and example, if a batch holds a value that is not finite; ``where`` has the
    words before the example's number, such as "in val"."""
    for name, values in tensors_of(batch):
        if (bad := ~values.isfinite()).any():
            row, rows = bad.nonzero()[0, 0] if values.ndim else 0, len(values) if values.ndim else 0
            among = [visits.indices[row]] if rows == len(visits.indices) else visits.indices
            raise DataError(f"{name} holds {values[bad][0]:g} {where} example {' or '.join(map(str, among))}; fix or "
                            "leave out values that are not finite")
