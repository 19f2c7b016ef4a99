"""What is trained: data set, model, loss, metrics and defaults; the user's own jobs derive from ``Workload``.

    data = load_data(workload, data_dir, data_args)        Data: train, val and test splits
    model = build_model(workload, model_args)              a torch module
    loss = bound_loss(workload, label_smoothing)
    total, count = loss(model, batch)                      the sum of the batch's losses, and of how many
    found = measured(workload, model, batch)               each metric's sum and count, which add up over batches

These functions call the workload's own and check what they give: a mistake is an error that says what is needed.
"""
from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .data.splits import Batch, Data, Draws, MapSplit, Split, tensors_of, to_device
from .errors import DataError, HvdscaleError, PlanError, UsageError, WorkloadError

__all__ = ["Batch", "Card", "Classification", "Data", "Draws", "MapSplit", "Split", "Workload", "bound_loss",
           "build_model", "load_data", "mean_metrics", "measured", "problems", "smoothed_cross_entropy", "summarized",
           "tensors_of", "to_device"]


@dataclass(frozen=True)
class Card:
    """What is known of a workload before its data is read: the published facts of a data set, as a workload loads it.

    train_examples, val_examples   sizes of the train and of the validation split
    batch                          gives a batch of one example on the meta device, as a split's ``take`` would
    model_args                     the arguments of build that the published data determines, {"vocabulary": 32000}
    """

    train_examples: int
    val_examples: int
    batch: Callable[[], object]
    model_args: dict = field(default_factory=dict)


class Workload:
    """A job: a subclass sets dataset, model and metrics, and defines load, build, loss and measure.

    dataset, model  names, as shown in logs and reports
    metrics         name -> "min" or "max": which way is better. All that ``measure`` gives, known before the log exists
    defaults        keys of hvdscale.plan.settings, under which the job reaches its target
    summarized      those of the metrics that are no mean over a split: ``summarize`` gives them
    parts           what ``measure`` gives for them: name -> the length of a vector that adds up over batches
    card            sizes of the published data, for plans without it; None: not known
    """

    dataset: str
    model: str
    metrics: Mapping[str, str]
    defaults: Mapping = {}
    summarized: tuple[str, ...] = ()
    parts: Mapping[str, int] = {}
    card: Card | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.model}"

    def load(self, data_dir: str | None) -> Data:
        """The examples; data_dir is what --data-dir says, None without it.

        Further parameters are the workload's data arguments; ``allow_missing`` is given what that option says, and
        ``cache_dir`` what that key says.
        """
        raise NotImplementedError

    def build(self, **model_args) -> nn.Module:
        """A new model, drawn from torch's generator, which is seeded before; model_args are the user's."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, float]:
        """The sum of the losses of the batch, and their count: of examples, or of tokens, whichever the mean is over.

        The gradient of a step is that of all sums divided by all counts. A third parameter, ``label_smoothing``, is
        given what that key says; without it the key is refused.
        """
        raise NotImplementedError

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor | float, float]]:
        """Each metric's sum over the batch and count, by name; the mean over a split is all sums by all counts.

        In place of the ``summarized`` metrics it gives the ``parts``, as tensors of one dimension.
        """
        raise NotImplementedError

    def summarize(self, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
        """The ``summarized`` metrics of a split of at least one example, from the means and the parts' sums over it."""
        raise NotImplementedError

    def check_data(self, data: Data) -> None:
        """Raise DataError where the data cannot be right; nothing is checked unless a subclass does."""

    def check_label_smoothing(self, share: float) -> None:
        """Raise PlanError where the loss does not take this share."""
        if share and not _takes_label_smoothing(self):
            raise PlanError(f"label_smoothing = {share:g}: the loss of {self.name} takes none; leave it out, or give "
                            "the loss a third parameter label_smoothing")


METHODS = {"load": "load(self, data_dir) -> Data(train, val, test)", "build": "build(self, **model_args) -> nn.Module",
           "loss": "loss(self, model, batch) -> (sum of losses, their count)",
           "measure": "measure(self, model, batch) -> {metric: (sum, count)}"}


def problems(workload) -> list[str]:
    """What an object lacks of a workload, a line each, with what is needed; nothing where it is one."""
    if inspect.isclass(workload):
        return [f"it is a class; name an instance: workload = {workload.__name__}()"]
    if not isinstance(workload, Workload):
        return [f"it is a {type(workload).__name__}, not an instance of a subclass of hvdscale.workload.Workload"]
    found = [f"{name} must be a name, such as {name} = 'mine'; it is {_shown(workload, name)}"
             for name in ("dataset", "model") if not isinstance(getattr(workload, name, None), str) or
             not getattr(workload, name)]
    metrics, defaults = getattr(workload, "metrics", None), workload.defaults
    if not isinstance(metrics, Mapping) or not metrics or not all(_is_metric(*pair) for pair in metrics.items()):
        found.append("metrics must map names to the better direction, such as metrics = {'error': 'min'}; it is "
                     f"{_shown(workload, 'metrics')}")
    elif set(workload.summarized) - set(metrics):
        found.append(f"summarized names {', '.join(sorted(set(workload.summarized) - set(metrics)))}, which metrics "
                     "does not declare")
    elif workload.summarized and type(workload).summarize is Workload.summarize:
        found.append("summarize is missing: summarize(self, means, parts) -> {metric: number}")
    elif not _are_parts(workload.parts, metrics) or (workload.parts and not workload.summarized):
        found.append("parts must map names that are no metrics to lengths, such as parts = {'bleu_counts': 10}, for "
                     f"the metrics that summarized names; it is {workload.parts!r}")
    if not isinstance(defaults, Mapping):
        found.append(f"defaults must be a dict of keys, such as dict(lr=0.1, local_batch=32); it is {defaults!r}")
    found += [f"{name} is missing: {needed}" for name, needed in METHODS.items()
              if getattr(type(workload), name) is getattr(Workload, name) and name not in vars(workload)]
    return found


def _is_metric(name, direction) -> bool:
    return isinstance(name, str) and bool(re.fullmatch(r"[\w.-]+", name)) and direction in ("min", "max")


def _are_parts(parts, metrics: Mapping[str, str]) -> bool:
    return isinstance(parts, Mapping) and not parts.keys() & metrics.keys() and all(
        isinstance(name, str) and type(length) is int and length > 0 for name, length in parts.items())


def _shown(workload, name: str) -> str:
    return repr(getattr(workload, name)) if hasattr(workload, name) else "missing"


def load_data(workload: Workload, data_dir: str | None, data_args: Mapping = {}, **given) -> Data:
    """The workload's data; raises DataError or WorkloadError for what cannot be trained on, UsageError for data_args
    that ``load`` does not take.

    given  allow_missing and cache_dir, for a ``load`` that takes them
    """
    taken = inspect.signature(workload.load).parameters
    if given.get("allow_missing") and "allow_missing" not in taken:
        raise UsageError(f"--allow-missing: the data of {workload.name} has no parts that may be missing; leave it out")
    if given.get("cache_dir") and "cache_dir" not in taken:
        raise UsageError(f"cache_dir: nothing is made of the data of {workload.name} that would be kept; leave it out")
    known = [name for name, parameter in [*taken.items()][1:] if parameter.kind not in (
        parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name not in ("allow_missing", "cache_dir")]
    unknown = [name for name in data_args if name not in known]
    if unknown and not any(parameter.kind == parameter.VAR_KEYWORD for parameter in taken.values()):
        raise UsageError(f"{workload.name} has no data argument {unknown[0]!r}; it takes {', '.join(known) or 'none'}")
    try:
        data = workload.load(data_dir, **data_args, **{name: value for name, value in given.items() if name in taken})
    except DataError as error:
        from .data.published import DATA_SETS  # not at every start: it brings all that downloads need
        if data_dir is None and workload.dataset in DATA_SETS:
            raise DataError(f"{error}. `hvdscale-data fetch {workload.dataset}` brings it") from None
        raise
    if not isinstance(data, Data):
        raise WorkloadError(f"{workload.name}: load gave a {type(data).__name__}; it returns "
                            "hvdscale.workload.Data(train, val, test)")
    workload.check_data(data)
    return data


def build_model(workload: Workload, model_args: dict) -> nn.Module:
    """The workload's model; raises UsageError for arguments that it does not take, WorkloadError for no such model."""
    try:
        model = workload.build(**model_args)
    except HvdscaleError:
        raise
    except (TypeError, KeyError, ValueError, RuntimeError) as error:
        taken = [name for name, parameter in inspect.signature(workload.build).parameters.items()
                 if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
        raise UsageError(f"{workload.name} does not take model_args = {model_args}: {error}" +
                         f". It takes {', '.join(taken)}" * bool(taken)) from None
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"{workload.name}: build gave a {type(model).__name__}; it returns a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"{workload.name}: the model has no parameter that is trained (requires_grad)")
    return model


def bound_loss(workload: Workload, label_smoothing: float) -> Callable[[nn.Module, object], tuple[Tensor, float]]:
    """The workload's loss at this label smoothing, (model, batch) -> (sum, count), which raises WorkloadError."""
    more = {"label_smoothing": label_smoothing} if _takes_label_smoothing(workload) else {}

    def loss(model, batch):
        given = workload.loss(model, batch, **more)
        if not isinstance(given, tuple) or len(given) != 2:
            raise WorkloadError(f"loss gave {_kind(given)}; it returns the sum of the batch's losses and their count, "
                                "so that any worker count has one mean: return losses.sum(), len(losses)")
        total, count = given
        if not isinstance(total, Tensor) or total.numel() != 1 or not total.requires_grad:
            without = " without gradient" * (isinstance(total, Tensor) and not total.requires_grad)
            raise WorkloadError(f"loss gave {_kind(total)}{without} for the sum of the losses; it must be one number, "
                                "as a tensor that backward can start from: losses.sum()")
        return total.reshape(()), _count(count, "loss")
    return loss


def _takes_label_smoothing(workload) -> bool:
    return "label_smoothing" in inspect.signature(workload.loss).parameters


@dataclass(frozen=True)
class Measured:
    """What one batch gave: sum and count by metric that is a mean, and the vector of each part."""

    sums: dict[str, tuple[float, float]]
    parts: dict[str, list[float]]


def mean_metrics(workload: Workload) -> list[str]:
    """The metrics that are means over a split."""
    return [name for name in workload.metrics if name not in workload.summarized]


def _mismatch(given, workload: Workload) -> str:
    """``: mae is missing, MAE is unknown``, for what ``measure`` gave by name."""
    if not isinstance(given, Mapping):
        return ""
    wanted = [*mean_metrics(workload), *workload.parts]
    said = [f"{name} is missing" for name in wanted if name not in given]
    said += [f"{name} comes from summarize alone" if name in workload.summarized else f"{name} is unknown"
             for name in given if name not in wanted]
    return f": {', '.join(said)}"


def measured(workload: Workload, model: nn.Module, batch) -> Measured:
    """What the workload measures of the batch, in the order that it declares; raises WorkloadError."""
    given, wanted = workload.measure(model, batch), mean_metrics(workload)
    if not isinstance(given, Mapping) or set(given) != {*wanted, *workload.parts}:
        names = ", ".join(map(str, given)) if isinstance(given, Mapping) else _kind(given)
        parts = f"; parts, {', '.join(workload.parts)}" if workload.parts else ""
        raise WorkloadError(f"measure gave {names or 'nothing'}, and metrics declares {', '.join(wanted)}{parts}; it "
                            f"returns {{metric: (sum, count)}} with each of these{_mismatch(given, workload)}")
    sums = {}
    for name in wanted:
        try:
            total, count = given[name]
            sums[name] = float(total), _count(count, f"measure, {name},")
        except (TypeError, ValueError, RuntimeError):
            raise WorkloadError(f"measure gave {_kind(given[name])} for {name}; it returns the sum over the batch and "
                                "the count: (values.sum(), len(values))") from None
    return Measured(sums, {name: _vector(name, given[name], length) for name, length in workload.parts.items()})


def _vector(name: str, values, length: int) -> list[float]:
    if not isinstance(values, Tensor) or values.shape != (length,):
        raise WorkloadError(f"measure gave {_kind(values)} for {name}, and parts declares a vector of {length} numbers")
    return values.tolist()


def summarized(workload: Workload, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
    """The summarized metrics of a split; raises WorkloadError."""
    given = workload.summarize(means, parts)
    if not isinstance(given, Mapping) or set(given) != set(workload.summarized):
        names = ", ".join(map(str, given)) or "nothing" if isinstance(given, Mapping) else _kind(given)
        raise WorkloadError(f"summarize gave {names}; it returns {{metric: number}} with each of "
                            f"{', '.join(workload.summarized)}")
    try:
        return {name: float(value) for name, value in given.items()}
    except (TypeError, ValueError, RuntimeError):
        raise WorkloadError(f"summarize gave {given} where each metric is one number") from None


def _count(count, where: str) -> float:
    """The count as a number; zero is one, as of a batch without a token that counts."""
    number = count.item() if isinstance(count, Tensor) and count.numel() == 1 else count
    if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise WorkloadError(f"{where} gave {_kind(count)} for the count; it is the number of examples or tokens in the "
                            "sum")
    return number


def _kind(value) -> str:
    if isinstance(value, Tensor):
        number = f" ({value.item():g})" if value.numel() == 1 else ""
        return f"a tensor of shape {tuple(value.shape)}{number}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_kind, value))})"
    return repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"


def as_stored(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """The inputs in this floating type."""
    return inputs.to(dtype)


@dataclass(frozen=True)
class Classification(Workload):
    """A ready-made workload: classification with one label an example.

    classes   labels are 0 .. classes-1; None: the data says, as its model_args["classes"]
    load      data_dir (None: no folder given) -> Data, of batches that unpack as inputs, labels (n,) int64
    build     model arguments -> module from a batch's inputs, as ``prepare`` makes them, to (n, classes) logits
    prepare   stored inputs and a floating type -> the model's inputs
    """

    dataset: str
    model: str
    classes: int | None
    load: Callable[[str | None], Data] = field()
    build: Callable[..., nn.Module] = field()
    prepare: Callable[[Tensor, torch.dtype], Tensor] = as_stored
    defaults: Mapping = field(default_factory=dict)
    card: Card | None = None

    metrics = {"cross_entropy": "min", "error": "min"}

    def loss(self, model: nn.Module, batch, label_smoothing: float = 0.0) -> tuple[Tensor, int]:
        """Sum over the batch of the cross-entropy in nats, with label smoothing; and the number of examples."""
        inputs, labels = batch
        logits = self._logits(model, inputs)
        try:
            return smoothed_cross_entropy(logits, labels, label_smoothing), len(labels)
        except IndexError:
            bad = labels[(labels < 0) | (labels >= logits.shape[1])].tolist()
            raise DataError(f"label {bad[0] if bad else '?'} of a training example is not one of 0 .. "
                            f"{logits.shape[1] - 1}") from None

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor, int]]:
        """cross_entropy (nats, unsmoothed) and error (share of examples misclassified), as sums and counts."""
        inputs, labels = batch
        logits = self._logits(model, inputs)
        cross_entropy = functional.cross_entropy(logits.double(), labels, reduction="sum")
        errors = (logits.argmax(1) != labels).sum()
        return {"cross_entropy": (cross_entropy, len(labels)), "error": (errors, len(labels))}

    def check_data(self, data: Data) -> None:
        """Raise DataError for labels in memory that are no class, naming the first."""
        classes = data.model_args["classes"] if self.classes is None else self.classes
        for name in ("train", "val", "test"):
            split = getattr(data, name)
            if isinstance(split, Split):
                _check_labels(name, split.labels, classes)

    def check_label_smoothing(self, share: float) -> None:
        """Raise PlanError for a share that leaves the true class less than each other."""
        if self.classes is not None:
            _refuse_too_smooth(share, self.classes)

    def _logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        return model(self.prepare(inputs, next(model.parameters()).dtype))


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise DataError(f"the {name} split's labels are {labels.dtype} of shape {tuple(labels.shape)}; a label is a "
                        "whole number an example: torch.int64, shape (n,)")
    if len(labels) and not (0 <= labels.min() and labels.max() < classes):
        at = int(((labels < 0) | (labels >= classes)).nonzero()[0])
        raise DataError(f"the {name} split's label {labels[at]} of example {at} is not one of 0 .. {classes - 1}")


def _refuse_too_smooth(share: float, classes: int) -> None:
    most = 1 - 1 / classes
    if share > most:
        raise PlanError(f"label_smoothing = {share:g} leaves the true one of {classes} classes less than each other; "
                        f"use at most {most:g}")


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over the examples of the cross-entropy to targets of 1 - s on the label and s / (K - 1) on each other class.

    This is the published definition (Shallue et al. 2019); torch's ``label_smoothing`` spreads its s over all K
    classes, so that s here equals s K / (K - 1) there.

    logits  (n, K);  labels  (n,) int64;  smoothing  s in [0, 1 - 1/K]
    Raises PlanError for a share that leaves the true class less than each other.
    """
    classes = logits.shape[1]
    _refuse_too_smooth(smoothing, classes)
    over_all = smoothing * classes / (classes - 1)
    return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=over_all)
