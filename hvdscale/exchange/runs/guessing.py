"""How runs are meant, by what their names, parameters, programs and tags say: the mapping that is guessed."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from ...analysis.studies import group_by
from ...formatting.numbers import fill, list_first
from ...log.directions import better
from ...log.schema import DIRECTIONS
from ...plan.settings import read_toml
from ...target import logged_name, metric_faults
from ..files import LARGEST_INT
from .mapping import GLOBAL_BATCH, LOSS, RATE, WORKER_BATCH, Metric, RunMapping, Source, count_of, source_of
from .run import NAMES, PROGRAMS, STEP, WITHIN, FoundRun, Series

_PATTERNS, _TEXTS = PROGRAMS["patterns"], read_toml(Path(__file__).with_name("remarks.toml"))
UNKNOWN = "unknown"
LEFT_OUT = "left out: "
MOST_METRICS = 1000             # columns of metrics that a log takes
STAMP = 1e8                     # seconds from which a clock counts since 1970
_WAYS = {way: word for word, way in DIRECTIONS.items()}          # min and max by the log's words
_POINT = r"(?:^|[^a-zA-Z])(?:{})[-_=]?(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"    # in a run's path: lr0.1, wd=1e-4
_OF_VALIDATION = "val_", "val/", "valid_", "eval_"
_SPLITS, _UNIT_NAMES = ({name: meant for meant, listed in NAMES[kind].items() for name in listed.split()}
                        for kind in ("splits", "units"))
_OF_EVALUATION, _OF_RUN, _PLAIN_LOSS, _EVALUATED, _PARTS, _WORD = (re.compile(_PATTERNS[name]) for name in (
    "of_evaluation", "of_run", "plain_loss", "evaluated", "parts", "word"))


def split_of(text: Any) -> str:
    """The split that a text such as train_epoch begins with; "" of any other."""
    return _SPLITS.get(_PARTS.split(text.strip().lower())[0], "") if isinstance(text, str) else ""


def say(kind: str, **values: Any) -> str:
    """A remark or an error of remarks.toml."""
    return fill((_TEXTS["errors"] | _TEXTS["remarks"])[kind], _TEXTS["tables"] | values)


def setting_names() -> set[str]:
    """Of batches, workers, labels and metaparameters, in lower case."""
    lists = (*map(NAMES.get, ("global_batch", "batch", "worker_batch", "workers")), *PROGRAMS["labels"].values(),
             *PROGRAMS["metaparameters"].values())
    return {name.lower() for listed in lists for name in listed}


def guess(runs: Sequence[FoundRun], given_unit: str | None = None) -> RunMapping:
    """What the runs' names, parameters, programs and tags say; what they leave open is missing. ``given_unit``: what a
    user says that steps count."""
    tags: dict[str, Series] = {}
    for tag, series in (found for run in runs for found in run.series.items()):
        tags.setdefault(tag, series)
    settings, per, evidence = _guess_counts(runs)
    step, unit, within = _guess_step(runs, tags)
    unit = given_unit or unit
    alone = [tag for tag in tags if _PLAIN_LOSS.fullmatch(tag) and not _OF_RUN.fullmatch(tag)]
    trained = _first((*NAMES["losses"], *alone[:len(alone) == 1]), tags)
    loss = trained if unit == "steps" or within else ""
    rate = _first(NAMES["rates"], tags) or next((tag for tag in tags if re.fullmatch("lr-.*|.*/lr", tag)), "")
    seconds, time_unit = _guess_clock(runs, [tag for tag in tags if tag != step])
    used = {loss, rate, step, within, seconds}
    each = _first((*NAMES["step_times"], *NAMES["line_times"]), [tag for tag in tags if tag != seconds])
    if each in NAMES["line_times"] and not all(_rises_by_one(run, step, [each]) for run in runs):
        evidence["step_seconds"], each = say("line_time", each=repr(each)), ""
    measured_rows = np.concatenate([np.zeros(0, int), *(tags[tag].rows for tag in tags if better(f"val/{tag}"))])
    metrics = dict(islice(((tag, metric) for tag in tags if tag not in used and (
        metric := _guess_metric(tag, tags, measured_rows))), MOST_METRICS))
    named = {split_of((_EVALUATED.match(os.path.basename(run.path)) or [""])[0]) for run in runs}
    if not metrics and len(named) == 1 and (split := named.pop()):
        loss, metrics = "", {tag: one for tag in tags if (one := _guess_metric(f"{split}_{tag}", {})) and one.way}
    elif trained and (not metrics if loss else unit == "epochs" and (trained in NAMES["losses"] or not metrics)):
        metrics[trained] = Metric("train/loss", "min")
    sizes = {count_of(run.parameters.get(_first(NAMES["set_size"], run.parameters))) for run in runs}
    kept = _one_a_column(metrics, runs)
    validated = [tag for tag in kept if not kept[tag].column.startswith("train/")]
    if unit == "steps" and not given_unit and any(_rises_by_one(run, step, validated) for run in runs):
        if any(_rises_by_one(run, epoch := _first(NAMES["epoch"], tags), validated) for run in runs):
            step, unit = epoch, "epochs"
        else:
            evidence["step_unit"] = say("step_or_epoch", step=step)
    seen = _batches_of_examples(runs, step) if unit == "steps" else None
    if seen:
        settings["batch"], per, evidence["batch"] = seen[0], GLOBAL_BATCH, say("batch_of_examples", examples=seen[1])
    if plain := [tag for tag in kept if kept[tag].column == f"val/{tag}" and not _OF_EVALUATION.fullmatch(tag)]:
        evidence["metric"] = say("plain", tags=list_first(plain, 5))
    numbers = {key for run in runs for key, value in run.parameters.items() if isinstance(value, (int, float))}
    points = {name: _source(keys, numbers, _POINT.format("|".join(map(re.escape, keys))), runs)
              for name, keys in PROGRAMS["metaparameters"].items()}
    mapping = RunMapping(settings | _guess_names(runs), per, step, unit, 0, within, seconds=seconds, step_seconds=each,
                         time_unit=time_unit, train_examples=sizes.pop() if len(sizes) == 1 else None, tags=kept,
                         metaparameters={name: source for name, source in points.items() if source}, evidence=evidence,
                         steps={name: tag for name, tag in ((LOSS, loss), (RATE, rate)) if tag})
    return replace(mapping, step_offset=seen[2] if seen else _guess_offset(runs, mapping))


def _batches_of_examples(runs: Sequence[FoundRun], step: str) -> tuple[Source, str, int] | None:
    """(the global batch of each run, the tag of its examples, 1 where steps count from 0), where a count of examples is
    everywhere one number times the steps done."""
    for tag, offset in product(sorted(runs[0].series.keys() & {*NAMES["examples"], *NAMES["examples_beside"]}), (0, 1)):
        found = {run.path: _even_share(run, tag, step, offset) for run in runs}
        if all(found.values()):
            return Source(found if len({*found.values()}) > 1 else max(found.values())), tag, offset
    return None


def _even_share(run: FoundRun, tag: str, step: str, offset: int) -> int:
    """The whole number that a tag has more in each step done; 0 if there is none."""
    done, values = run.spread(step) + offset, run.spread(tag)
    there = (done > 0) & (values > 0)
    shares = np.unique(values[there] / done[there])
    return int(shares[0]) if len(shares) == 1 and shares[0] % 1 == 0 and there.sum() > 1 else 0


def _one_a_column(metrics: Mapping[str, Metric], runs: Sequence[FoundRun]) -> dict[str, Metric]:
    """Of the tags of a column that a run has, whatever its capitals, those with the most rows."""
    kept: set[str] = set()
    for run in runs:
        rows = {tag: len(run.series[tag].rows) for tag in metrics if tag in run.series}
        for tags in group_by(rows, lambda tag: metrics[tag].column.lower()).values():
            best = max(tags, key=lambda tag: (tag in kept, rows[tag], " " not in tag))      # a line's, below a headline
            kept |= {tag for tag in tags if rows[tag] == rows[best] and metrics[tag].column == metrics[best].column
                     and (" " in tag) == (" " in best)}
    return {tag: metric for tag, metric in metrics.items() if tag in kept}


def _first(wanted: Iterable[str], there: Collection[str]) -> str:
    """The first of the wanted names that is there; "" where none is."""
    return next((name for name in wanted if name in there), "")


def _source(keys: Iterable[str], there: Collection[str], pattern: str, runs: Sequence[FoundRun], letters: str = ""
            ) -> Source | None:
    """The first of these parameters that is there, else the pattern, where all paths have it; else one of the letters,
    in names such as w4-b32-s1 or before numbers that count from 0, 1 or 2, unlike those of the models r50 and r101."""
    if key := _first(keys, there):
        return Source(parameter=key)
    for pattern in filter(None, (pattern, letters and _PATTERNS["lettered"].replace("letters", letters))):
        if all(re.search(pattern, run.path) for run in runs):
            return Source(pattern=pattern)
    pattern = rf"(?:^|[^a-zA-Z0-9])[{letters}](\d+)(?![a-zA-Z0-9])"
    numbers = {int((re.findall(pattern, run.path) or [LARGEST_INT])[-1]) for run in runs} if letters else {0}
    return Source(pattern=pattern) if len(numbers) > 1 and min(numbers) < 3 and LARGEST_INT not in numbers else None


def _guess_counts(runs: Sequence[FoundRun]) -> tuple[dict[str, Source], str, dict[str, str]]:
    """(settings of batch, workers, nodes and accumulation; whose the batch is; why)."""
    there = {name for name in runs[0].parameters if all(count_of(run.parameters.get(name)) for run in runs)}
    found = {kind: _source(NAMES[kind], there, _PATTERNS.get(kind, ""), runs, NAMES["letters"].get(kind, ""))
             for kind in ("workers", "nodes", "accumulation")}
    per_node, nodes = _first(NAMES["per_node"], there), _first(NAMES["nodes"], there)
    if per_node and not _first(NAMES["workers"], there):
        found["workers"] = Source(parameter=per_node, times=(nodes,) if nodes else ())
    batch, per, why = _guess_batch(runs, there)
    evidence = {"batch": why}
    if found["accumulation"] and batch and found["accumulation"].parameter in batch.times:
        found["accumulation"] = None
    loaders = [name for name in NAMES["loaders"] if any(name in run.parameters for run in runs)]
    if loaders and not found["workers"]:
        evidence["workers"] = say("loaders", loaders=" and ".join(loaders))
    return {name: source for name, source in {"batch": batch, **found}.items() if source}, per, evidence


def _guess_batch(runs: Sequence[FoundRun], there: Collection[str]) -> tuple[Source | None, str, str]:
    """(where the batch comes from, whose it is, why), by the first rule under which there is one; ``there``: counts."""
    known = []                  # what the programs mean whose marks all runs have: see programs.toml
    for name, program in PROGRAMS["programs"].items():
        source, files = source_of("batch", program["batch"]), {*program.get("files", ())}
        if source.parameter in there and all(run.parameters.keys() >= {*program.get("has", ())} and (
                not files or files & {*run.files}) for run in runs):
            known.append((source, program["per"], f"{program['per']}_batch_of_program", name))
    known.sort(key=lambda found: found[1] != GLOBAL_BATCH)
    by_name = _source(NAMES["global_batch"], there, "", runs), GLOBAL_BATCH, "global_batch_by_name", ""
    rules = [*known[:1], by_name] if known and known[0][0].over else [by_name, *known]
    rules += [(_source(NAMES["batch"], there, "", runs), GLOBAL_BATCH, "batch_of_whom", ""),
              (_source((), (), _PATTERNS["batch"], runs), GLOBAL_BATCH, "batch_of_path", ""),
              (_source(NAMES["worker_batch"], there, "", runs), WORKER_BATCH, "worker_batch_by_name", "")]
    return next(((source, per, say(why, batch=str(source.parameter or source.of(runs[0])), program=name,
                                   most=str(source.nominal or ""))) for source, per, why, name in rules if source),
                (None, GLOBAL_BATCH, ""))


def _guess_names(runs: Sequence[FoundRun]) -> dict[str, Source]:
    """Seed, data set, model and optimizer: parameters that all runs have, else of their paths, else of their folder."""
    folder = os.path.commonpath([os.path.abspath(run.path) for run in runs])
    named = os.path.basename(folder if len(runs) > 1 else os.path.dirname(folder)) or UNKNOWN
    there = set.intersection(*({key for key, value in run.parameters.items()
                                if value is not None and not isinstance(value, bool)} for run in runs))
    return {name: _source(keys, there, _PATTERNS.get(name, ""), runs, NAMES["letters"].get(name, "")) or Source(
        {"dataset": named}.get(name, UNKNOWN)) for name, keys in PROGRAMS["labels"].items()}


def _guess_step(runs: Sequence[FoundRun], tags: Collection[str]) -> tuple[str, str, str]:
    """(the tag that counts, its unit, that of the steps within an epoch, which falls when the epoch rises)."""
    epoch = _first(NAMES["epoch"], tags)
    found = [name for name in NAMES["step"] if name in tags]
    within = [name for name in (*found, *NAMES["index"]) if name in tags and epoch and any(
        falls_by_epoch(run, name, epoch) for run in runs)]
    step = next((name for name in found if name not in within), "")
    if step and not (within and step == "_step"):
        return step, "steps", ""
    if epoch:
        return epoch, "epochs", WITHIN if WITHIN in tags else next(iter(within), "")
    rising = [tag for tag in tags if any(len(set(run.series[tag].values[:2])) > 1 for run in runs if tag in run.series)]
    for kind, unit, there in (("examples", "examples", rising), ("tokens", "tokens", rising),
                              ("reports", "steps", tags), ("lengths", "steps", tags), ("epochs", "epochs", tags)):
        if name := _first(NAMES[kind], there):
            return name, unit, ""
    return "", "steps", ""


def falls_by_epoch(run: FoundRun, step: str, epoch: str) -> bool:
    steps, epochs = run.spread(step), run.spread(epoch)
    both = ~np.isnan(steps) & ~np.isnan(epochs)
    steps, epochs = steps[both], epochs[both]
    rises = epochs[1:] > epochs[:-1]
    if not rises.any():         # one late epoch, most of whose steps there are
        return bool(run.epoch_steps and len(steps) and epochs[0] > 1 and np.ptp(steps) > run.epoch_steps / 2)
    return bool((steps[1:] < steps[:-1])[rises].mean() > 0.5)


def _rises_by_one(run: FoundRun, count: str, tags: Sequence[str]) -> bool:
    """Whether a count does so from each value of the first of these tags that the run has to the next."""
    tags = [tag for tag in tags if tag in run.series]
    rises = np.diff(np.unique(run.spread(count)[run.series[tags[0]].rows])) if tags and count else np.zeros(0)
    return len(rises) > 1 and bool((rises == 1).all())


def _guess_clock(runs: Sequence[FoundRun], tags: Sequence[str]) -> tuple[str, str]:
    """(the tag of the time since the start, its unit): a known name, else words of time under which numbers rise."""
    if known := _first((*NAMES["timed"], *NAMES["times"]), [tag for tag in tags if any(
            _has_passed(run.series[tag].values) for run in runs if tag in run.series)]):
        return known, "s"
    for tag in tags:
        words = [word for word in _WORD.split(tag[:100]) if word]
        if any(len(word) > 2 and word.lower() in {*NAMES["time_words"], *_UNIT_NAMES} for word in words) and all(
                word.lower() in NAMES["clock"] or word.lower() in _UNIT_NAMES for word in words) and all(
                len(values := run.series[tag].values) > (run.rows > 1) and _has_passed(values)
                and (values[1:] < values[:-1]).sum() <= 0.1 * len(values) for run in runs if tag in run.series):
            return tag, _UNIT_NAMES.get(words[-1].lower(), "s")
    return "", "s"


def _has_passed(values: np.ndarray) -> bool:
    """Whether these may be times since a start, by the most of them without a fall: those of steps are much alike."""
    rising = max(np.split(head := values[:10_000], np.flatnonzero(np.diff(head) < 0) + 1), key=len)
    return len(values) < 2 or bool(rising[-1] >= 1.5 * rising[0] or values[0] > STAMP)


def _guess_metric(tag: str, tags: Mapping[str, Series], measured_rows: Any = ()) -> Metric | None:
    """The column of a tag that names a split, or is known to be of an evaluation, and its better way by its name."""
    if column := NAMES["known"].get(tag):
        return Metric(column, _WAYS[better(column)])
    parts = _PARTS.split(tag)              # names, and what separates them
    split = next((_SPLITS[part.lower()] for part in parts[::2] if part.lower() in _SPLITS), "")
    if split:
        kept = [part + mark for part, mark in zip(parts[::2], (*parts[1::2], "")) if part.lower() not in _SPLITS]
        name = "".join(kept).strip("/_ .-").removeprefix("metrics/")
    elif _OF_EVALUATION.fullmatch(tag):
        split, name = "val", tag.removeprefix("metrics/")
    elif better(f"val/{tag}") and any(f"{val}{tag}" in tags for val in _OF_VALIDATION):
        split, name = "train", tag
    elif better(f"val/{tag}") and "train_loss" in tags and any(
            np.isin(tags[tag].rows, tags[f"{val}loss"].rows).all() for val in _OF_VALIDATION if f"{val}loss" in tags):
        split, name = "val", tag            # as of fastai: both losses name their split
    else:
        return None
    name, of_epoch = logged_name(name.removesuffix("_epoch")), name.endswith("_epoch")
    if not name or name.endswith("_step") or _OF_RUN.fullmatch(name) or metric_faults([name]):
        return None
    way = _WAYS.get(better(f"{split}/{name}"), "")
    if name.lower() == "cost" and any(re.search("(?i)loss|entropy|l1$", other) and np.isin(
            tags[tag].rows, tags[other].rows).all() for other in tags):
        return None                     # in seconds, where the losses have names of their own
    if not way and "".join(parts[1:2]).isspace() and not (tag in tags and np.isin(tags[tag].rows, measured_rows).all()):
        return None                     # a number among words, as in the path of a file that tests
    if not way and (of_epoch or parts[0].lower() not in _SPLITS and not _OF_EVALUATION.fullmatch(tag)):
        return None
    return Metric(f"{split}/{name}", way)


def _guess_offset(runs: Sequence[FoundRun], mapping: RunMapping) -> int:
    """1 where steps count from 0: where measurements lie before round numbers, or a loss was logged at step 0."""
    steps = [(run, run.spread(mapping.step)) for run in runs if mapping.step in run.series]
    logged = [(tag, at[run.series[tag].rows]) for run, at in steps for tag in (*mapping.tags, *mapping.steps.values())
              if tag in run.series]
    epochs = mapping.step_unit == "epochs"
    if epochs and any((at % 1 > 0).any() for _, at in steps):
        return 0                # parts of epochs are done
    trained = {mapping.steps.get(LOSS), *(tag for tag in mapping.tags if epochs and (
        mapping.tags[tag].column.startswith("train/")))}
    if any({0, 1} <= {*counts.tolist()} for tag, counts in logged if epochs and tag in trained):
        return 1                # each epoch has a training loss, and so has the first
    votes = []                  # 1 of a tag that was logged at steps such as 49 and 99, -1 of one at 50 and 100
    for counts in (counts[abs(counts) < 2**53].astype(np.int64) for _, counts in logged):
        if len(counts) and counts.min() < counts.max():
            votes.append(int(np.sign(np.gcd.reduce(counts + 1) - np.gcd.reduce(counts))))
    if any(votes) and not mapping.within:
        return int(sum(votes) > 0)
    if mapping.step == STEP and all(run.counts_done for run in runs):
        return 0
    counted = mapping.tags if epochs else trained       # epoch 0 is the first, and done when it is evaluated
    return int(any((counts == 0).any() for tag, counts in logged if tag in counted))


def accounts(runs: Sequence[FoundRun], mapping: RunMapping) -> dict[str, str]:
    """What every tag, column and file of the runs is used for, or that it is left out and why, by its name."""
    sources = [*mapping.settings.items(), *mapping.metaparameters.items()]
    used = {**{source.parameter: f"the setting {name}" for name, source in sources if source.parameter},
            mapping.step: "step", mapping.within: "step within the epoch", mapping.seconds: "seconds since the start",
            mapping.step_seconds: "seconds of a step", **{tag: f"steps/{name}" for name, tag in mapping.steps.items()},
            **{tag: f"{metric.column} {metric.way or '(better way unknown)'}" for tag, metric in mapping.tags.items()}}
    found = {}
    for tag in dict.fromkeys(tag for run in runs for tag in run.series):
        why = "it names no split"
        if _guess_metric(tag, {}):
            why = "another tag has its column, or there are too many"
        elif _OF_RUN.fullmatch(_PARTS.split(tag)[-1]) or _OF_RUN.fullmatch(tag):
            why = "of the run, not of its quality"
        found[tag] = used.get(tag) or LEFT_OUT + why
    return found | {name: LEFT_OUT + why for run in runs for name, why in (run.left_out or {}).items()
                    if name not in found}
