"""The settings of a run: each key, its meaning, and how a configuration file and the command line set it.

    settings = Settings.build(workload.defaults, read_toml("job.toml"), {"local_batch": 32, "target": "val/error<0.01"})

A later layer wins over an earlier one; a key set in a later layer also unsets its alternatives (``global_batch`` for
``local_batch``) in the earlier ones. A length is a value with a unit, ``warmup = "5 epochs"``, and NAME_UNIT = v means
NAME = "v UNIT": ``warmup_epochs = 5``. Of the budget the unit alone is a name, ``epochs = 90``. So is a length stored,
as a number.
"""
from __future__ import annotations

import sys
import typing
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from ..errors import UsageError
from ..formatting.numbers import listed
from ..system.inputs import read_input
from .batch_schedule import RATES
from .lengths import COUNTED, UNITS, Length
from .lengths import read as read_length
from .schedule import DECAYS, FALLING, PLATEAU, STARTED
from .values import LARGEST_INT, MOST, WORDS, check_value, did_you_mean, none_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# where and how a run is written, which does not identify it
PLACES = ("log", "checkpoint", "resume", "save_model", "overwrite", "take_over")


def _key(default: typing.Any, help: str, flag: bool = False, **rules: typing.Any) -> typing.Any:
    """A settings field. flag: has its own command line option; rules: choices; least, above, below: bounds of a number;
    word: accepted in place of a number; and those of ``_length``, below."""
    unset = dict.fromkeys(("choices", "least", "above", "below", "word", "plain", "older", "many"))
    metadata = {**unset, "units": (), "whole": ("steps",), **rules, "help": help, "flag": flag}
    return field(metadata=metadata, **({"default_factory": dict} if default == {} else {"default": default}))


# The field of a length. units: those it may have; plain: that of a number alone; older: NAME in NAME_UNIT, if not the
# key; whole: units in whole numbers; many: numbers, or (start, batch) pairs, of which it is a list
_length = partial(_key, None, units=COUNTED)
_half_life = partial(_length, units=COUNTED[1:], plain="examples", above=0)


@dataclass(frozen=True)
class Settings:
    """Every key with its value; None: the plan decides."""

    # the batch: B = W * b * k
    local_batch: int | None = _key(
        None, "examples per worker and forward pass; the global batch grows with the workers, but keeps that of the "
        "first start in an elastic job", True, least=1)
    global_batch: int | None = _key(
        None, "examples per step over all workers, fixed; shares may be uneven", True, least=1)
    accumulate: int = _key(1, "passes whose gradients a worker accumulates for one step", True, least=1)
    max_local_batch: int | None = _key(
        None, "largest local batch that fits a worker's memory; sets accumulate", True, least=1)
    batch_schedule: Length | None = _length(
        "a batch that changes: (start, batch) pairs, such as [[0, 64], [2000, 128]] in steps, or '[[0, 64], [5, 128]] "
        "epochs'", plain="steps", many="pairs")
    batch_schedule_lr: str = _key(
        "rule", "rate where the batch changes: by lr_rule (with adam_sqrt's moments); stay: as it is; seesaw: over the "
        "square root of the batch's factor, as a doubling in place of a halved rate", choices=RATES)
    ghost_batch: int | str | None = _key(
        None, "examples that share batch-norm statistics and a dropout stream, or global; default: 32, or fewer where "
        "the model runs one ghost group at a time", True, least=2, word="global")
    group_by_group: str = _key(
        "auto", "one ghost group per pass: always, never, or auto (if the model has torch's batch-norm or draws random "
        "numbers itself)", choices=("auto", "always", "never"))
    unused_parameters: str = _key(
        "error", "a parameter without a gradient on some worker: an error, or zeros there", choices=("error", "zeros"))
    last_batch: str = _key(
        "carry", "what is left of an epoch: carry it into the next, a short batch, or drop it",
        choices=("carry", "short", "drop"))
    # the learning rate
    lr: float | None = _key(None, "base learning rate, tuned at the base batch", True, above=0)
    lr_per_example: float | None = _key(None, "learning rate per example, times the global batch", above=0)
    base_batch: int | None = _key(None, "global batch at which the base learning rate was tuned", True, least=1)
    lr_rule: str = _key(
        "linear", "how the rate follows the batch: linear, sqrt, none, power:P, adam_sqrt (beta1, beta2 and epsilon "
        "follow, too), adam_sqrt:beta2 (beta1 stays), or tuned (needs metaparameters)", True)
    max_lr_factor: float | None = _key(
        None, "largest factor of the rule; adam_sqrt scales all as at that factor", above=0)
    metaparameters: str | None = _key(None, "TOML file of what was tuned per global batch, for lr_rule tuned", True)
    warmup: str = _key(
        "gradual", "its length, or its shape: gradual (linear ramp to the peak), constant (at the start rate) or none",
        True, choices=("gradual", "constant", "none"))
    warmup_length: Length | None = _length("length of the warmup, where warmup is its shape", older="warmup", least=0)
    warmup_start_factor: float | None = _key(
        None, "rate at the start of warmup, as a fraction of the peak; default: the base rate", least=0)
    decay: str = _key("constant", f"after the warmup: {', '.join(DECAYS[:-1])} or {DECAYS[-1]}", choices=DECAYS)
    decay_start: Length | None = _length(
        f"start of {listed(STARTED, 'or')} decay; default: the end of the warmup. Until then the peak is kept "
        "(warmup-stable-decay)", above=0)
    decay_end: Length | None = _length(
        f"end of {listed(FALLING, 'or')} decay, from step 0; default: the budget", older="decay", above=0)
    decay_at: Length | None = _length("where step decay reduces the rate, as '[30, 60, 80] epochs'", many="numbers")
    decay_factor: float = _key(0.1, "factor of each step decay, and of each reduction on a plateau", above=0)
    decay_metric: str | None = _key(None, "metric of plateau decay, such as val/cross_entropy; default: the target's")
    decay_patience: int = _key(10, "evaluations without improvement before a reduction on a plateau", least=0)
    decay_threshold: float = _key(
        1e-4, "improvement that counts on a plateau, as a fraction of the best value", least=0, below=1)
    decay_cooldown: int = _key(0, "evaluations after a reduction on a plateau that do not count", least=0)
    end_lr_factor: float = _key(
        0.0, f"rate at the end of {listed(FALLING, 'or')} decay, and lowest of plateau decay, as a fraction of the "
        "peak", least=0)
    # the optimizer and the loss
    optimizer: str = _key(
        "nesterov", "sgd, momentum, nesterov, adam, adamw, lars, lamb, muon, or a torch optimizer's module:Class", True)
    momentum: float = _key(0.9, "momentum of momentum, nesterov, lars and muon", least=0, below=1)
    momentum_half_life: Length | None = _half_life("half-life of the momentum, in examples if no unit is given")
    lr_in_velocity: bool = _key(False, "momentum, nesterov: v <- m v + lr g, p <- p - v; lars always does")
    momentum_correction: bool | None = _key(
        None, "with lr_in_velocity: rescale the velocity as the rate changes; default: all but lars")
    beta1: float = _key(0.9, "decay of the mean gradient in adam, adamw, lamb and in muon's AdamW", least=0, below=1)
    beta1_half_life: Length | None = _half_life("half-life of beta1's mean, in examples if no unit is given")
    beta2: float = _key(0.999, "decay of the mean square in adam, adamw, lamb and in muon's AdamW", least=0, below=1)
    beta2_half_life: Length | None = _half_life("half-life of beta2's mean, in examples if no unit is given")
    epsilon: float | None = _key(
        None, "added to the root mean square; default: 1e-8 in adam, adamw and muon's AdamW, 1e-6 in lamb", above=0)
    trust_coefficient: float = _key(0.001, "lars: norm of a layer's update over its weights', at rate 1", above=0)
    adamw_lr: float | None = _key(
        None, "muon: base rate of AdamW, for embeddings, biases, normalization; default: lr", above=0)
    muon_scale: str = _key(
        "match_rms_adamw", "muon: factor of a matrix's update. match_rms_adamw: 0.2 sqrt(max(rows, columns)), for "
        "AdamW's rates; original: sqrt(max(1, rows / columns))", choices=("match_rms_adamw", "original"))
    weight_decay: float = _key(
        0.0, "added to the gradient; in adamw, muon and lamb decoupled, so times the rate", least=0)
    decay_timescale: Length | None = _length(
        "adamw: weight decay by its time scale, in epochs if no unit is given: batch / (rate x time scale x training "
        "examples)", units=COUNTED[1:], plain="epochs", above=0)
    decay_norm_and_bias: bool = _key(False, "also decay biases and normalization parameters")
    clip_norm: float | None = _key(None, "clip the norm of the mean gradient to this", above=0)
    optimizer_args: dict = _key({}, "further arguments of a module:Class optimizer")
    label_smoothing: float = _key(
        0.0, "probability s moved off the true class, s/(K-1) to each other class", least=0, below=1)
    average: str = _key(
        "none", "also evaluate averaged weights, as averaged_METRIC, and save them: ema (exponential), tail (mean from "
        "average_start) or none", choices=("none", "ema", "tail"))
    average_half_life: Length | None = _half_life(
        "ema: half-life of the weights, in examples if no unit is given")
    average_start: Length | None = _length("tail: start of the mean; default: half of the budget", least=0)
    replicas: int = _key(1, "models that train apart, each on a share of every global batch", True, least=1)
    sync_every: Length | None = _length(
        "between synchronizations of the replicas, in steps if no unit is given", flag=True, plain="steps", above=0)
    outer: str = _key(
        "average", "outer step: average (local SGD) or nesterov (DiLoCo, MuLoCo)", choices=("average", "nesterov"))
    outer_lr: float = _key(0.7, "nesterov: rate of the outer step", above=0)
    outer_momentum: float = _key(0.9, "nesterov: momentum of the outer step", least=0, below=1)
    exchange: str = _key("full", "how a replica sends its change: full, bf16 or powersgd:R, a rank")
    # how long, and what is measured
    budget: Length | None = _length(
        "how long to train", units=UNITS, flag=True, older="", whole=("steps", "examples"), above=0)
    target: str | None = _key(
        None, "stop at the first evaluation that meets this, such as 'val/error<0.01'; or none", True)
    keep_going: bool = _key(False, "train to the end of the budget even if the target is met")
    eval_every: Length | None = _length(
        "between evaluations, in steps if no unit is given; 0: never; default: an epoch", flag=True, plain="steps",
        least=0)
    eval_batch: int = _key(256, "examples per pass of an evaluation", least=1)
    eval_splits: str = _key("train,val,test", "splits to evaluate; at the end always all three")
    train_eval_examples: int | None = _key(
        None, "training examples evaluated, a fixed subset; default: as many as in validation", least=1)
    noise_every: int | None = _key(
        None, "steps between measurements of the gradient noise scale; 0: never; default: 10, or 100 with one worker",
        least=0)
    # the problem's data and model
    data_dir: str | None = _key(None, "folder with the data set's files", True)
    data_args: dict = _key({}, "arguments of the data set, such as data_args.sequence=128")
    allow_missing: bool = _key(False, "train even if parts of the data set are missing; the log lists them", True)
    cache_dir: str | None = _key(None, "folder for the prepared data set; default: hvdscale in ~/.cache")
    train_subset: int | None = _key(None, "train on the first N examples", True, least=1)
    init_from: str | None = _key(None, "the model's initial state dict, written by torch.save", True)
    model_args: dict = _key({}, "arguments of the model, such as model_args.dropout=0.2")
    seed: int = _key(0, "seed of every random stream", True, least=0)
    precision: str = _key(
        "fp32", "fp64, fp32, tf32 (factors rounded by the GPU) or, with parameters and optimizer in fp32, bf16 or fp16",
        True, choices=("fp32", "tf32", "bf16", "fp16", "fp64"))
    compression: str = _key("none", "reduce gradients in their own type (none) or as fp16", choices=("none", "fp16"))
    loss_scale: float = _key(65536.0, "initial loss scale of fp16 gradients, computed or reduced; it adapts", above=0)
    # how it is carried out
    device: str = _key(
        "auto", "cpu, cuda, or auto: the GPU of the local rank, else the CPU", True, choices=("auto", "cpu", "cuda"))
    transport: str = _key(
        "auto", "what joins the workers: horovod, torch (torch.distributed), or auto (torch under torchrun, else "
        "horovod if it is installed)", choices=("auto", "horovod", "torch"))
    deterministic: bool = _key(
        False, "on a GPU, reruns equal to the bit at any precision: slower; fails for operations that cannot", True)
    exact: bool = _key(
        False, "the same bits at any worker count: sums without rounding, a pass for each ghost group, and as many "
        "threads per worker, by default one; slower")
    threads: int | None = _key(
        None, "threads per worker; default: OMP_NUM_THREADS, else the host's cores / its workers", least=1, below=4097)
    bucket_mib: float = _key(
        0.0, "gradient buckets reduced during the backward pass; 0: one allreduce after it", least=0)
    loader_workers: int = _key(
        0, "processes per worker that read a map-style data set; 0: the worker itself", least=0, below=1025)
    untimed_passes: int = _key(3, "untimed passes before the first step; they leave the model unchanged", least=0)
    stall_seconds: float = _key(120.0, "abort the job when a worker waits longer than this for others", above=0)
    checkpoint: str | None = _key(None, "folder for checkpoints", True)
    resume: str = _key(
        "none", "auto: from the newest intact checkpoint in the folder, if any; none: from scratch; or the path of a "
        "checkpoint", True)
    checkpoint_every: Length | None = _length(
        "between checkpoints, in steps if no unit is given, beside those at the start, at the end and on a signal; "
        "default: 5 min", units=UNITS, plain="steps", above=0)
    commit_every: int | None = _key(
        None, "steps between in-memory commits of an elastic job; default: as costs less than 1 %", least=1)
    keep_checkpoints: int = _key(2, "number of checkpoints to keep", least=1)
    log: str | None = _key(
        None, "log file; default: runs/WORKLOAD-TIME.h5; horovodrun and torchrun need --log-file", True)
    save_model: str | None = _key(None, "write the final model's state dict to this file", True)
    overwrite: bool = _key(False, "replace an existing log", True)
    take_over: bool = _key(False, "write the log even where the file system refuses locks", False)
    accept_changes: bool = _key(
        False, "resume although source, defaults, model or data of the job have changed; the log has both", True)
    accepted: dict = _key({}, "earlier jobs that count as this one, by digest; other commands set it")

    layers: tuple = field(default=(), repr=False)

    @classmethod
    def build(cls, defaults: dict, *layers: dict) -> Settings:
        """The settings from a workload's defaults and the user's layers, the last one strongest. Raises UsageError for
        a key that does not exist, a value of the wrong kind, and two alternatives in one layer."""
        return cls(**_laid(defaults, *layers), layers=(defaults, *layers))

    def over(self, tuned: dict) -> Settings:
        """The same with a layer between the workload's defaults and what the user typed."""
        defaults, *layers = self.layers
        return Settings(**_laid(defaults, tuned, *layers), layers=self.layers)

    @property
    def typed(self) -> frozenset:
        """The keys that the user set and no later layer unset."""
        return frozenset(name for name, value in _laid(*self.layers[1:]).items() if value is not None)

    def asked(self) -> dict:
        """What the user set, by key; lengths as numbers, by NAME_UNIT."""
        return dict(sorted(stored(name, getattr(self, name)) for name in self.typed))

    @property
    def in_tokens(self) -> dict[str, Length]:
        return {name: value for name, value in vars(self).items()
                if isinstance(value, Length) and value.unit == "tokens"}

    def named(self, key: str) -> str:
        return stored(key, getattr(self, key))[0]


BATCH = ("local_batch", "global_batch")
DECAYS_PER_STEP = ("momentum", "beta1", "beta2")
HALF_LIVES = {name: f"{name}_half_life" for name in DECAYS_PER_STEP}
# keys of which only one can be set, but for both keys of the batch if they agree
ALTERNATIVES = (BATCH, *((name, "batch_schedule") for name in BATCH), ("lr", "lr_per_example"), *HALF_LIVES.items(),
                ("weight_decay", "decay_timescale"))


# the optimizers with a name, and the keys of each
_VELOCITY, _MOMENTS = ("momentum", "lr_in_velocity", "momentum_correction"), ("beta1", "beta2", "epsilon")
OPTIMIZERS = {"sgd": (), "momentum": _VELOCITY, "nesterov": _VELOCITY, "adam": _MOMENTS, "adamw": _MOMENTS,
              "lars": ("momentum", "momentum_correction", "trust_coefficient"), "lamb": _MOMENTS,
              "muon": ("momentum", *_MOMENTS, "adamw_lr", "muon_scale")}
NO_CLASS = ", and not module:Class such as torch.optim:RMSprop"         # follows their list
OPTIMIZER_KEYS = tuple(dict.fromkeys(key for keys in OPTIMIZERS.values() for key in keys))
# those whose weight decay is the rate times the key alone; in lamb the trust ratio scales it, too
DECOUPLED = ("adamw",)
# keys that act only where another key has one of these values
ACTS_ONLY_WITH = {
    **{key: ("optimizer", tuple(name for name, keys in OPTIMIZERS.items() if decay in keys))
       for decay in OPTIMIZER_KEYS for key in (decay, HALF_LIVES.get(decay, decay))},
    "decay_timescale": ("optimizer", DECOUPLED),
    "decay_end": ("decay", tuple(FALLING)), "end_lr_factor": ("decay", (*FALLING, PLATEAU)),
    "decay_start": ("decay", STARTED), "decay_at": ("decay", ("step",)), "decay_factor": ("decay", ("step", PLATEAU)),
    **dict.fromkeys(("decay_metric", "decay_patience", "decay_threshold", "decay_cooldown"), ("decay", (PLATEAU,))),
    **dict.fromkeys(("warmup_length", "warmup_start_factor"), ("warmup", ("gradual", "constant"))),
    "metaparameters": ("lr_rule", ("tuned",)), "average_half_life": ("average", ("ema",)),
    "average_start": ("average", ("tail",)), **dict.fromkeys(("outer_lr", "outer_momentum"), ("outer", ("nesterov",))),
}


def _laid(*layers: dict) -> dict:
    """The layers merged: each sets its keys, and unsets their alternatives and what they leave without effect."""
    settled: dict = {}
    for written in layers:
        layer: dict = {}
        for name, given in written.items():
            key, value = read(name, given)
            if key in layer:
                other = next(f"{name} = {said}" for name, said in written.items() if read(name, said)[0] == key)
                raise UsageError(f"{other} and {name} = {given} are alternatives, as both set {key}; give one of them")
            layer[key] = value
        for group in ALTERNATIVES:
            given = [name for name in group if name in layer]
            if len(given) > 1 and group is not BATCH:
                first, second = (" = ".join(map(str, stored(name, layer[name]))) for name in given)
                raise UsageError(f"{first} and {second} are alternatives; give one of them")
            if given:
                for name in group:
                    settled.pop(name, None)
        if "warmup_length" in layer and settled.get("warmup") == "none":
            del settled["warmup"]
        for name, (other, values) in ACTS_ONLY_WITH.items():
            if other in layer and layer[other] not in values:
                settled.pop(name, None)
        for name, value in layer.items():
            settled[name] = {**settled.get(name, {}), **value} if _TYPES[name] is dict else value
    return settled


KEYS = {f.name: f for f in fields(Settings) if f.name != "layers"}
# what the keys are about, each heading with the first key under it
HEADINGS = {"Batch": "local_batch", "Learning rate": "lr", "Optimizer and loss": "optimizer",
            "Budget, target and evaluation": "budget", "Data, model and precision": "data_dir",
            "Execution": "device", "Checkpoints": "checkpoint", "Output": "log"}
_TYPES = {name: [t for t in (typing.get_args(hint) or (hint,)) if t is not type(None)][0]
          for name, hint in typing.get_type_hints(Settings).items() if name != "layers"}


def keys_by_heading() -> dict[str, list[str]]:
    names = list(KEYS)
    first = [*map(names.index, HEADINGS.values()), len(names)]
    return {heading: names[start:stop] for heading, start, stop in zip(HEADINGS, first, first[1:])}


# every name of a length, with its key, and the unit if that is in the name
LENGTHS = {name: (key, unit) for key, field in KEYS.items() if field.metadata["units"] for name, unit in (
    (key, None), *((f"{stem}_{unit}".lstrip("_"), unit) for stem in (key, field.metadata["older"]) if stem is not None
                   for unit in UNITS))}
# names that are options of their own, under the key that they say; those that are not listed come last
OPTIONS = {**{key: (key,) for key, field in KEYS.items() if field.metadata["flag"]},
           "budget": ("budget", "steps", "epochs"), "warmup": ("warmup", "warmup_epochs")}
# keys of a shape that take a length, too, each with that length's
SHAPES = {"warmup": "warmup_length", "decay": "decay_end"}


def key_of(name: str) -> str:
    """The key that a name says: that of a length for NAME_UNIT."""
    return LENGTHS.get(name, (name, None))[0]


def key_type(name: str) -> type:
    """int, float, bool, str, list or dict, of a NAME_UNIT too; Length for one that needs a unit."""
    key, unit = LENGTHS.get(name, (name, None))
    rules = KEYS[key].metadata
    unit = unit or rules["plain"]
    if unit is None:
        return _TYPES[key]
    if rules["many"]:
        return list
    return int if unit in rules["whole"] else float


def stored(key: str, value: typing.Any) -> tuple[str, typing.Any]:
    """The name and the value with which a log and a file of tuned values have it: a length as NAME_UNIT, a number."""
    if not isinstance(value, Length):
        return key, value
    rules = KEYS[key].metadata
    name = key if rules["older"] is None else rules["older"]
    return (name if value.unit == rules["plain"] else f"{name}_{value.unit}".lstrip("_")), value.amount


def stored_names(key: str) -> dict[str, str | None]:
    """The names under which logs have a key, each with the unit of its number; None: it is no length."""
    units = KEYS[key].metadata["units"]
    return {stored(key, Length(0, unit))[0]: unit for unit in units} if units else {key: None}


def is_key(name: str) -> bool:
    return key_of(name) in KEYS


def check(name: str, value: typing.Any) -> typing.Any:
    """The value as its name takes it: a length as the number or the text that it was given as. Raises UsageError."""
    _, found = read(name, value)
    if not isinstance(found, Length):
        return found
    return str(found) if isinstance(value, str) else found.amount


def read(name: str, value: typing.Any) -> tuple[str, typing.Any]:
    """The key that a name says, and its value; raises UsageError naming both where the key does not take it."""
    if name in LENGTHS or name in SHAPES and isinstance(value, (str, Length)) and read_length(value):
        key, unit = LENGTHS.get(name) or (SHAPES[name], None)
        return key, _check_length(name, value, key, unit)
    if name not in KEYS:
        hint = did_you_mean(name, [*KEYS, *LENGTHS], "`hvdscale-train --help-all` names them all")
        raise UsageError(f"there is no key {name!r}; {hint}")
    kind, rules = _TYPES[name], KEYS[name].metadata
    if value == rules["word"] is not None:
        return name, value
    word = WORDS[kind] + (f" or {rules['word']!r}" if rules["word"] else "")
    value = check_value(name, value, kind, word, rules["least"], rules["above"], rules["below"])
    if rules["choices"] and value not in rules["choices"]:
        length = "; nor is it a length, such as '5 epochs'" if name in SHAPES else ""
        raise UsageError(f"{name} = {none_of(value, rules['choices'])}{length}")
    return name, value


def _check_length(name: str, value: typing.Any, key: str, unit: str | None) -> Length:
    rules = KEYS[key].metadata
    found = Length(value, unit) if unit else read_length(value)
    wanted = found.unit or rules["plain"] if found else None
    if found is None or wanted not in rules["units"]:
        wrong = "has no unit" if found else "is not a length in one unit"
        if wanted:
            wrong = f"cannot be in {wanted}"
        such = {None: "a number of {}, such as '10 epochs'", "numbers": "numbers of {}, such as '[30, 60, 80] epochs'",
                "pairs": "pairs in {}, such as '[[0, 64], [5, 128]] epochs'"}[rules["many"]]
        raise UsageError(f"{name} = {value!r} {wrong}: give {such.format(listed(rules['units'], 'or'))}")
    said = name if unit or not found.unit else f"{name} = {value!r}: {wanted}"
    return Length(_check_amount(said, found.amount, wanted in rules["whole"], rules), wanted)


def _check_amount(name: str, amount: typing.Any, whole: bool, rules: typing.Mapping[str, typing.Any]) -> typing.Any:
    if not rules["many"]:
        if not whole:
            return check_value(name, amount, float, None, rules["least"], rules["above"], MOST)
        amount = int(amount) if isinstance(amount, float) and amount.is_integer() else amount
        return check_value(name, amount, int, None, rules["above"] + 1 if rules["least"] is None else rules["least"],
                           below=MOST)
    check_value(name, amount, list, "a list of numbers")
    pairs = rules["many"] == "pairs"
    starts = [0, *amount] if not pairs else [entry[0] for entry in amount if type(entry) is list and len(
        entry) == 2 and type(entry[1]) is int and 0 < entry[1] <= LARGEST_INT]
    grow = all(type(start) in ((int,) if whole else (int, float)) and abs(start) < MOST for start in starts) and all(
        before < after or before == after > 0 and not pairs for before, after in zip(starts, starts[1:]))
    if not amount or len(starts) < len(amount) or not grow or starts[0]:
        raise UsageError(f"{name} = {amount!r} is not a list of " + (
            "(start, batch) pairs from start 0 on, in order, such as [[0, 64], [2000, 128]]" if pairs else
            "growing positive numbers, such as [30, 60, 80]"))
    return amount


def read_toml(path: str | Path) -> dict:
    """A TOML file as a dict; raises UsageError naming the file, and line and column of a syntax error."""
    try:
        return tomllib.loads(read_input(path).decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:       # of its grammar, of UTF-8, of an integer's digits
        raise UsageError(f"{path}: is not TOML: {error}") from None


def flat(record: typing.Mapping) -> dict:
    """A record with the entries of its tables, however deep, each by a name as data.missing."""
    found: dict = {}
    for key, entry in record.items():
        within = isinstance(entry, typing.Mapping)
        found.update({f"{key}.{name}": value for name, value in flat(entry).items()} if within else {key: entry})
    return found


def parse_assignments(texts: typing.Iterable[str]) -> dict:
    """The layer that ``key=value`` texts set: values as in TOML or bare words, ``table.key=value`` into a table."""
    layer: dict = {}
    for text in texts:
        dotted, equals, written = text.partition("=")
        name, _, inner = dotted.strip().partition(".")
        if not equals or not name:
            raise UsageError(f"--set {text!r} is not key=value, such as weight_decay=1e-4")
        try:
            value = tomllib.loads(f"value = {written.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = written.strip()
        if not inner:
            layer[name] = value
        elif name in KEYS and _TYPES[name] is dict:
            table = layer.setdefault(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"--set {text!r}: {name} = {table!r} is not a table")
            table[inner] = value
        else:
            raise UsageError(f"--set {text!r}: {name} is not a table, so {dotted} names nothing")
    return layer
