"""Workloads: data set, model, loss, metrics and defaults. Your own job is a subclass of ``Workload``.

    data = load_data(workload, data_dir, data_args)        Data: train, val and test splits
    model = build_model(workload, model_args)              a torch module
    loss = bound_loss(workload, label_smoothing)
    total, count = loss(model, batch)                      the sum of the batch's losses, and their count
    found = measured(workload, model, batch)               each metric's sum and count, which add up over batches

These functions call the workload's methods and check the results; an error says what a method must return.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .data.splits import Batch, Data, Draws, MapSplit, Split, tensors_of, to_device
from .errors import DataError, PlanError, UsageError, WorkloadError
from .target import metric_faults

__all__ = ["Batch", "Card", "Classification", "Data", "Draws", "MapSplit", "Split", "Workload", "bound_loss",
           "build_model", "load_data", "mean_metrics", "measured", "problems", "smoothed_cross_entropy", "summarized",
           "tensors_of", "to_device"]


@dataclass(frozen=True)
class Card:
    """What is known of a workload before its data is read: facts of the published data set, as loaded."""

    train_examples: int
    val_examples: int
    batch: Callable[[], object]                         # of one example on the meta device, as a split's ``take`` would
    model_args: dict = field(default_factory=dict)      # of build, that the data determines: {"vocabulary": 32000}


class Workload:
    """A job: a subclass sets dataset, model and metrics, and defines load, build, loss and measure.

    dataset, model  names, as shown in logs and reports
    metrics         name -> "min" or "max": which way is better. All that ``measure`` gives, known before the log
                    exists. A name may hold spaces, signs and slashes: "Top-1 acc (%)", "c4/loss"
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
        """The examples; data_dir is the value of --data-dir, None without it.

        Further parameters are the workload's data arguments, except ``allow_missing`` and ``cache_dir``, which get the
        values of the settings of that name.
        """
        raise NotImplementedError

    def build(self, **model_args) -> nn.Module:
        """A new model, drawn from torch's generator, already seeded; model_args are the user's."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch) -> tuple[Tensor, float]:
        """The sum of the batch's losses, and their count: of examples or of tokens, whichever the mean is over.

        The gradient of a step is that of the total sum divided by the total count. An optional third parameter,
        ``label_smoothing``, gets the value of that key; without it the key is refused.
        """
        raise NotImplementedError

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor | float, float]]:
        """Each metric's sum over the batch and count, by name; a split's mean is the total sum over the total count.

        Instead of the ``summarized`` metrics it returns the ``parts``, as tensors of one dimension.
        """
        raise NotImplementedError

    def summarize(self, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
        """The ``summarized`` metrics of a split of at least one example, from the means and the parts' sums over it."""
        raise NotImplementedError

    def check_data(self, data: Data) -> None:
        """Raise DataError if the data cannot be right; by default nothing is checked."""

    def check_label_smoothing(self, share: float) -> None:
        """Raise PlanError if the loss does not support this share."""
        if share and not _takes_label_smoothing(self):
            raise PlanError(f"label_smoothing = {share:g}: the loss of {self.name} takes none; leave it out, or add a "
                            "third parameter label_smoothing to the loss")


METHODS = {"load": "load(self, data_dir) -> Data(train, val, test)", "build": "build(self, **model_args) -> nn.Module",
           "loss": "loss(self, model, batch) -> (sum of losses, their count)",
           "measure": "measure(self, model, batch) -> {metric: (sum, count)}"}


def problems(workload) -> list[str]:
    """What keeps an object from being a workload, one line each, with the fix; empty for a workload."""
    if inspect.isclass(workload):
        return [f"it is a class; name an instance: workload = {workload.__name__}()"]
    if not isinstance(workload, Workload):
        return [f"it is a {type(workload).__name__}, not an instance of a subclass of hvdscale.workload.Workload"]
    found = [f"{name} must be a name, such as {name} = 'mine'; it is {_describe_attribute(workload, name)}"
             for name in ("dataset", "model") if not isinstance(getattr(workload, name, None), str) or
             not getattr(workload, name)]
    metrics, defaults, parts = getattr(workload, "metrics", None), workload.defaults, workload.parts
    if not isinstance(metrics, Mapping) or not metrics or not all(
            isinstance(name, str) and name and better in ("min", "max") for name, better in metrics.items()):
        found.append("metrics must map names to the better direction, such as metrics = {'error': 'min'}; it is "
                     f"{_describe_attribute(workload, 'metrics')}")
    elif metric_faults(metrics):
        found += metric_faults(metrics)
    elif set(workload.summarized) - set(metrics):
        found.append(f"summarized names {', '.join(sorted(set(workload.summarized) - set(metrics)))}, which metrics "
                     "does not declare")
    elif workload.summarized and type(workload).summarize is Workload.summarize:
        found.append("summarize is missing: summarize(self, means, parts) -> {metric: number}")
    elif not isinstance(parts, Mapping) or parts.keys() & metrics.keys() or (parts and not workload.summarized) or any(
            not isinstance(name, str) or type(length) is not int or length <= 0 for name, length in parts.items()):
        found.append("parts must map names other than metrics to lengths, such as parts = {'bleu_counts': 10}, and "
                     f"needs metrics named in summarized; it is {parts!r}")
    if not isinstance(defaults, Mapping):
        found.append(f"defaults must be a dict of keys, such as dict(lr=0.1, local_batch=32); it is {defaults!r}")
    found += [f"{name} is missing: {needed}" for name, needed in METHODS.items()
              if getattr(type(workload), name) is getattr(Workload, name) and name not in vars(workload)]
    return found


def _describe_attribute(workload, name: str) -> str:
    return repr(getattr(workload, name)) if hasattr(workload, name) else "missing"


def load_data(workload: Workload, data_dir: str | None, data_args: Mapping = {}, **given) -> Data:
    """The workload's data; raises DataError or WorkloadError for unusable data, UsageError for data_args that ``load``
    does not take. ``given``: allow_missing and cache_dir, for a ``load`` that takes them."""
    taken = inspect.signature(workload.load).parameters
    if given.get("allow_missing") and "allow_missing" not in taken:
        raise UsageError(f"--allow-missing: the data of {workload.name} has no optional parts; leave it out")
    if given.get("cache_dir") and "cache_dir" not in taken:
        raise UsageError(f"cache_dir: nothing from the data of {workload.name} is cached; leave it out")
    known = [name for name, parameter in [*taken.items()][1:] if parameter.kind not in (
        parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name not in ("allow_missing", "cache_dir")]
    unknown = [name for name in data_args if name not in known]
    if unknown and not any(parameter.kind == parameter.VAR_KEYWORD for parameter in taken.values()):
        raise UsageError(f"{workload.name} has no data argument {unknown[0]!r}; it takes {', '.join(known) or 'none'}")
    try:
        data = workload.load(data_dir, **data_args, **{name: value for name, value in given.items() if name in taken})
    except DataError as error:
        from .data.fetch import DATA_SETS  # not at every start: it imports all that downloads need
        if data_dir is None and workload.dataset in DATA_SETS:
            raise DataError(f"{error}. `hvdscale-data fetch {workload.dataset}` downloads it") from None
        raise
    if not isinstance(data, Data):
        raise WorkloadError(f"{workload.name}: load returned a {type(data).__name__}; it must "
                            "return hvdscale.workload.Data(train, val, test)")
    workload.check_data(data)
    return data


def build_model(workload: Workload, model_args: dict) -> nn.Module:
    """The workload's model; raises UsageError for arguments it does not take, WorkloadError for an unusable model."""
    try:
        model = workload.build(**model_args)
    except (TypeError, KeyError, ValueError, RuntimeError) as error:
        taken = [name for name, parameter in inspect.signature(workload.build).parameters.items()
                 if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
        takes = f". It takes {', '.join(taken)}" if taken else ""
        raise UsageError(f"{workload.name} does not take model_args = {model_args}: {error}{takes}") from None
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"{workload.name}: build returned a {type(model).__name__}; it must return a "
                            "torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"{workload.name}: the model has no trainable parameter (requires_grad)")
    return model


def bound_loss(workload: Workload, label_smoothing: float) -> Callable[[nn.Module, object], tuple[Tensor, float]]:
    """The workload's loss at this label smoothing, (model, batch) -> (sum, count), which raises WorkloadError."""
    more = {"label_smoothing": label_smoothing} if _takes_label_smoothing(workload) else {}

    def loss(model, batch):
        given = workload.loss(model, batch, **more)
        if not isinstance(given, tuple) or len(given) != 2:
            raise WorkloadError(f"loss returned {kind_of(given)}; it must return the sum of the batch's losses and "
                                "their count, so that the mean is the same at any worker count: return losses.sum(), "
                                "len(losses)")
        total, count = given
        if not isinstance(total, Tensor) or total.numel() != 1 or not total.requires_grad:
            without = " without gradient" if isinstance(total, Tensor) and not total.requires_grad else ""
            raise WorkloadError(f"loss returned {kind_of(total)}{without} for the sum of the losses; it must be one "
                                "number, as a tensor with a gradient: losses.sum()")
        return total if total.ndim == 0 else total.reshape(()), _count(count, "loss")
    return loss


def _takes_label_smoothing(workload) -> bool:
    return "label_smoothing" in inspect.signature(workload.loss).parameters


@dataclass(frozen=True)
class BatchMeasures:
    """The measurements of one batch: sum and count of each metric that is a mean, and the vector of each part."""

    sums: dict[str, tuple[float, float]]
    parts: dict[str, list[float]]


def mean_metrics(workload: Workload) -> list[str]:
    """The metrics that are means over a split."""
    return [name for name in workload.metrics if name not in workload.summarized]


def measured(workload: Workload, model: nn.Module, batch) -> BatchMeasures:
    """The workload's measurements of the batch, in the order that it declares; raises WorkloadError."""
    given, wanted = workload.measure(model, batch), mean_metrics(workload)
    both = {*wanted, *workload.parts}
    if not isinstance(given, Mapping) or set(given) != both:
        names, faults = kind_of(given), ""
        if isinstance(given, Mapping):
            names = ", ".join(map(str, given))
            faults = ": " + ", ".join([
                *(f"{name} is missing" for name in [*wanted, *workload.parts] if name not in given),
                *(f"{name} comes only from summarize" if name in workload.summarized else f"{name} is unknown"
                  for name in given if name not in both)])
        declared = f"; parts, {', '.join(workload.parts)}" if workload.parts else ""
        raise WorkloadError(f"measure returned {names or 'nothing'}, but metrics declares {', '.join(wanted)}"
                            f"{declared}; it must return {{metric: (sum, count)}} with each of these{faults}")
    sums, parts = {}, {}
    for name in wanted:
        try:
            total, count = given[name]
            sums[name] = float(total), _count(count, f"measure, {name},")
        except (TypeError, ValueError, RuntimeError):
            raise WorkloadError(f"measure returned {kind_of(given[name])} for {name}; it must return the sum over the "
                                "batch and the count: (values.sum(), len(values))") from None
    for name, length in workload.parts.items():
        if not isinstance(given[name], Tensor) or given[name].shape != (length,):
            raise WorkloadError(f"measure returned {kind_of(given[name])} for {name}; as a part of length {length} it "
                                f"must be a tensor of shape ({length},), a sum over the batch without a count")
        parts[name] = given[name].tolist()
    return BatchMeasures(sums, parts)


def summarized(workload: Workload, means: dict[str, float], parts: dict[str, np.ndarray]) -> dict[str, float]:
    """The summarized metrics of a split; raises WorkloadError."""
    given = workload.summarize(means, parts)
    if not isinstance(given, Mapping) or set(given) != set(workload.summarized):
        names = ", ".join(map(str, given)) or "nothing" if isinstance(given, Mapping) else kind_of(given)
        raise WorkloadError(f"summarize returned {names}; it must return {{metric: number}} with each of "
                            f"{', '.join(workload.summarized)}")
    try:
        return {name: float(value) for name, value in given.items()}
    except (TypeError, ValueError, RuntimeError):
        raise WorkloadError(f"summarize returned {given}; each metric must be one number") from None


def _count(count, where: str) -> float:
    """The count as a number; it may be zero, as for a batch without a token that counts."""
    number = count.item() if isinstance(count, Tensor) and count.numel() == 1 else count
    if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise WorkloadError(f"{where} returned {kind_of(count)} for the count; it must be the number of examples or "
                            "tokens in the sum")
    return number


def kind_of(value) -> str:
    """A value in few words: ``a tensor of shape (8, 3)``."""
    if isinstance(value, Tensor):
        number = f" ({value.item():g})" if value.numel() == 1 else ""
        return f"a tensor of shape {tuple(value.shape)}{number}"
    if isinstance(value, tuple):
        return f"({', '.join(map(kind_of, value))})"
    return repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"


def describe_build(workload: Workload) -> str:
    """Where the code of a workload builds its model: ``made/net builds the model at job.py:7``; "" if unknown."""
    code = getattr(inspect.unwrap(workload.build), "__code__", None)
    return f"{workload.name} builds the model at {code.co_filename}:{code.co_firstlineno}" if code else ""


@dataclass(frozen=True)
class Classification(Workload):
    """A ready-made workload: classification with one label per example.

    classes   labels are 0 .. classes-1; None: determined by the data, as its model_args["classes"]
    load      data_dir (None: no folder given) -> Data, of batches that unpack as inputs, labels (n,) int64
    build     model arguments -> module from a batch's inputs, as ``prepare`` makes them, to (n, classes) logits
    prepare   stored inputs and a floating type -> the model's inputs; by default they alone become of that type
    """

    dataset: str
    model: str
    classes: int | None
    load: Callable[[str | None], Data] = field()
    build: Callable[..., nn.Module] = field()
    prepare: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to
    defaults: Mapping = field(default_factory=dict)
    card: Card | None = None

    metrics = {"cross_entropy": "min", "error": "min"}

    def loss(self, model: nn.Module, batch, label_smoothing: float = 0.0) -> tuple[Tensor, int]:
        """Sum over the batch of the cross-entropy in nats, with label smoothing; and the number of examples."""
        logits, labels = self._logits(model, batch)
        try:
            return smoothed_cross_entropy(logits, labels, label_smoothing), len(labels)
        except IndexError:
            bad = labels[(labels < 0) | (labels >= logits.shape[1])].tolist()
            raise DataError(f"label {bad[0] if bad else '?'} of a training example is not one of 0 .. "
                            f"{logits.shape[1] - 1}") from None

    def measure(self, model: nn.Module, batch) -> dict[str, tuple[Tensor, int]]:
        """cross_entropy (nats, unsmoothed) and error (share of examples misclassified), as sums and counts."""
        logits, labels = self._logits(model, batch)
        cross_entropy = functional.cross_entropy(logits.double(), labels, reduction="sum")
        errors = (logits.argmax(1) != labels).sum()
        return {"cross_entropy": (cross_entropy, len(labels)), "error": (errors, len(labels))}

    def check_data(self, data: Data) -> None:
        """Raise DataError for labels in memory outside 0 .. classes-1, naming the first."""
        classes = data.model_args["classes"] if self.classes is None else self.classes
        splits = [(name, getattr(data, name)) for name in ("train", "val", "test")]
        for name, labels in [(name, split.labels) for name, split in splits if isinstance(split, Split)]:
            if labels.dtype != torch.int64 or labels.ndim != 1:
                raise DataError(f"the {name} split's labels are {labels.dtype} of shape {tuple(labels.shape)}; a label "
                                "must be one integer per example: torch.int64, shape (n,)")
            if len(labels) and not (0 <= labels.min() and labels.max() < classes):
                at = int(((labels < 0) | (labels >= classes)).nonzero()[0])
                raise DataError(f"the {name} split's label {labels[at]} of example {at} is not one of 0 .. "
                                f"{classes - 1}")

    def check_label_smoothing(self, share: float) -> None:
        """Raise PlanError for a share that gives the true class less weight than each other class."""
        if self.classes is not None:
            _refuse_too_smooth(share, self.classes)

    def _logits(self, model: nn.Module, batch) -> tuple[Tensor, Tensor]:
        pair = [] if isinstance(batch, Mapping) else [*batch]
        if len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise WorkloadError(f"{self.name}: a batch is {kind_of(batch)}; it must be inputs and labels, two tensors: "
                                "have the data set or its collate return these, or derive from Workload")
        inputs, labels = pair
        logits = model(self.prepare(inputs, _first_parameter(model).dtype))
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise WorkloadError("; ".join(filter(None, (
                f"{self.name}: the model of {type(model).__name__} returned {kind_of(logits)}",
                f"it must return logits, a tensor of shape ({len(inputs)}, {self.classes or 'classes'})",
                describe_build(self)))))
        return logits, labels


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """The first of ``module.parameters()``, in a fifth of the time, which shows in the steps of small models."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None and (found := _first_parameter(child)) is not None:
            return found
    return None


def _refuse_too_smooth(share: float, classes: int) -> None:
    most = 1 - 1 / classes
    if share > most:
        raise PlanError(f"label_smoothing = {share:g} gives the true class less weight than each other of {classes}; "
                        f"use at most {most:g}")


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum over the examples of the cross-entropy to targets of 1 - s on the label and s / (K - 1) on each other class.

    This is the published definition (Shallue et al. 2019). torch's ``label_smoothing`` spreads s over all K classes, so
    s here equals s K / (K - 1) there. Raises PlanError for a share above the most.

    logits  (n, K);  labels  (n,) int64;  smoothing  s in [0, 1 - 1/K]
    """
    classes = logits.shape[1]
    _refuse_too_smooth(smoothing, classes)
    over_all = smoothing * classes / (classes - 1)
    return functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=over_all)
