r"""Logs of lines such as ``step 250: train loss 2.51, val loss 2.63``: of nanoGPT and its kin, Megatron-LM, torchtitan,
fairseq, DeepSpeed; or ``Epoch 3: train loss 0.21, test acc 97.1`` where no line names a step. Lines with an indent
below such a line, as OLMo and Composer print them, are of the same step.

Where no such line has a metric of validation or test, a line that names one is of the step, or the epoch, before it; so
are the lines below a headline such as ``***** Eval results *****``, or of the step that one of them names.
A line is split at its numbers, and lines that differ in nothing else have one form, whose names are looked at once.
"""

import io
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...log.directions import better
from ...system.inputs import open_input, refusal
from ..files import WrongFile, encoding_of, number_of
from .guessing import NAMES, say, split_of
from .mapping import TIME_UNITS
from .run import EPOCH, LONGEST_TAG, STEP, WITHIN, FoundRun, Series, constants_of, head_of, series_of, value_of

NAME = "lines"
ENDS = (".log", ".txt", ".out", ".stdout", ".err", ".stderr")
NAMED_BY = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/@.+-% \t"      # characters of names
UNITS = {word: TIME_UNITS[unit] for unit, words in NAMES["units"].items() for word in words.split()}
KNOWN, MANY = NAMES["known"], NAMES["many"]
(GLUED, NUMBER, COUNTED, IN_BRACKETS, CONTROL, CODE, LEVEL, SPLIT, SECTION, NAMED, TRAINED, HEADLINE, PROGRESS,
 SUMMARY, COCO, DOTTED, SETTING, STAMPED, MODULE, BARE, OF_EPOCH, OF_BATCH, JOINED, GIVEN, BAR, ENDED) = (
    re.compile(pattern) for pattern in NAMES["lines"].values())
PREAMBLE = 5000             # lines in which settings are looked for


class Form:
    """The lines that differ in their numbers alone.

    step, epoch     the place of that counter among the numbers; None: there is none
    within          that of a counter within the epoch;  total: that of the steps of a run or an epoch
    tags            (name, place, scale) of the other numbers that have a name
    aside           the same in a line that belongs to the step before it; [] where none is of a split
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.step, self.epoch, self.within, self.total = None, None, None, None
        self.indented = texts[0][:1].isspace()
        self.lines, self.heads, self.numbers = array("q"), array("q"), array("d")
        self.texts = texts
        self._count(texts)
        names, whole = _of_sections(list(_names(texts)), texts), "0".join(texts)
        counters = {self.step, self.epoch, self.within, self.total} - {None}
        if self.step == 0 and BARE.fullmatch(texts[1]):
            names = [(f"{name} loss" if split_of(name) else name, *where) for name, *where in names]
        first = self.epoch if self.step is None else self.step
        before = "" if first is None else "".join(texts[:1 + first])
        if self.epoch is not None and self.step is self.within is None:
            names = [(re.sub("(?<=time )seconds$|step_seconds$", "epoch seconds", name, flags=re.I), *where)
                     for name, *where in names]
        self.tags = _of_first([tag for tag in _of_split(names, before) if tag[1] not in counters], texts, len(before))
        split = next((place for place, text in enumerate(texts) if SPLIT.search(text)), 0)
        self.aside = _of_split([name for name in names if name[1] >= split], "val" if SUMMARY.search(whole) else whole)
        self.aside = [] if PROGRESS.search(whole) else [
            one for one in self.aside if NAMED.match(one[0]) or TRAINED.fullmatch(one[0])]
        self.measures = any(better(f"val/{name}") or name in KNOWN for name, *_ in (*self.tags, *self.aside))
        self.used = sorted({place for _, place, _ in (*self.tags, *self.aside)} | counters)

    def _count(self, texts: Sequence[str]) -> None:
        if len(texts) == 3 and not texts[0] and BARE.fullmatch(texts[1]):
            self.step = 0
        named = any(COUNTED.search(text[-LONGEST_TAG:]) for text in texts[:-1])
        for place, (text, after) in enumerate(zip(texts, texts[1:])):
            if place == self.total:
                continue
            found = COUNTED.search(text[-LONGEST_TAG:])
            of_total = after.strip() == "/" and place + 2 < len(texts)
            counter = found["counter"].lower() if found else ""
            if not named:               # 3epoch results:, or a.py:48] [500] loss=2, or [500/900]
                bare = text.endswith("] [") and after.startswith("] ") or (text, after) == ("[", "/") and (
                    "/" not in texts[place + 2:place + 3])              # a date
                counter = "step" if bare else ""
                counter = "epoch" if after.startswith("epoch") and not text.endswith("/") else counter
            if of_total and text.endswith("[") and texts[place + 2] == "][":
                counter = counter or "epoch"            # Train: [0/300][20/1251]
            if counter.startswith("epoch"):
                self.epoch = place if self.epoch is None else self.epoch
            elif counter and (self.step is None or "global" in text.lower()):
                self.within, self.step, self.total = self.step, place, place + 1 if of_total else None
            elif self.epoch is not None and place - self.epoch in (1, 2) and OF_BATCH.fullmatch(text):
                self.within, self.total = place + (after == "-"), place + 1 if of_total else None       # or [20-40]
            elif of_total and self.epoch is not None and (
                    text.replace(" ", "") == "][" and place - 3 < self.epoch or text == " [" and place - 1 == self.epoch
                    or OF_EPOCH.match(texts[place + 2])):
                self.within, self.total = place, place + 1

    def add(self, at: int, head: int, numbers: Sequence[str]) -> None:
        """Adds a line by its numbers; ``head``: the last line without an indent."""
        self.lines.append(at)
        self.heads.append(head)
        self.numbers.extend([float(numbers[place].replace(",", "")) for place in self.used])

    def column(self, place: int) -> np.ndarray:
        return np.frombuffer(self.numbers)[self.used.index(place)::len(self.used)]


def _names(texts: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """(name, place, scale) of the numbers of a line that have a name; a time has its unit as the scale, in seconds."""
    for place, text in enumerate(texts[:-1]):
        glued = GLUED.match(texts[place + 1])[0]
        text = text[:-1] if re.search(r"[:=] ?\[$", text) else text             # lr: [0.05]
        if not text or text[-1] not in " :=\t" or glued and glued not in (*UNITS, "%", ".") or (
                texts[place + 1].strip() in ("", ":", "-", "/") and place + 2 < len(texts)      # a date, a share
                and not (texts[place + 1] == " " and text.endswith("= "))) or (                 # but BLEU = 7.6 34/13
                texts[place + 1].startswith("%|")) or (                                         # or a progress bar
                UNITS.get(texts[place + 1].strip(), 0) >= 60 and any(
                    text.split()[:1] == [unit] for text in texts[place + 2:place + 3] for unit in UNITS)):   # or 1h 20m
            continue
        after = texts[place + 1][:10].split()
        unit = glued or (after[0].rstrip(",;|") if after else "")
        left = text[-2 * LONGEST_TAG:] if not place else text[len(GLUED.match(text)[0]):][-2 * LONGEST_TAG:]
        left = left.rstrip(" :=\t")
        if found := IN_BRACKETS.search(left):
            unit, left = found[1] if found[1] in UNITS else unit, left[:found.start()].rstrip()
        name = left[len(left.rstrip(NAMED_BY)):].rpartition(" - ")[2].rpartition("\t")[2]
        name = JOINED.sub("", LEVEL.sub("", name).lstrip("0123456789_/@.+-% \t").rstrip(".-+% "))
        if name and len(name) <= LONGEST_TAG and not CODE.search(name):
            unit = "ms" if name == "ms/batch" else unit
            timed = unit in UNITS and (glued or found or unit == "ms")
            kind = "seconds" if UNITS.get(unit, 0) >= 1 and name.lower() in ("time", "dt") else "step_seconds"
            spaced = len(unit) > 2 and name.lower().split()[-1] in NAMES["time_words"]      # time 10.1 min
            yield (f"{name} {kind}" if timed else name, place, UNITS.get(unit, 1.0) if timed or spaced else 1.0)


def _of_sections(names: Sequence[tuple[str, int, float]], texts: Sequence[str]) -> list[tuple[str, int, float]]:
    """The names, of the split of their section: ``[train] loss=2, [valid] loss=3`` or ``train: loss 2 | val: loss 3``;
    where all is of training they are as they were."""
    found = ([split_of(one) for one in SECTION.findall(text)] for text in texts)
    splits = list(accumulate((own[-1] if own else "" for own in found), lambda before, own: own or before))
    if not {*splits} - {"", "train"}:
        return list(names)
    return [(name if split_of(name) else f"{splits[place]} {name}".lstrip(), place, scale)
            for name, place, scale in names]


def _of_split(names: Sequence[tuple[str, int, float]], before: str) -> list[tuple[str, int, float]]:
    prefix = ""
    if split := SPLIT.search(before):
        prefix = "val " if split["val"] else "test "
    found = {name if NAMED.match(name) or name.endswith("step_seconds") else prefix + name: (place, scale)
             for name, place, scale in names}
    return [(name, *where) for name, where in found.items()]


def _of_first(names: list[tuple[str, int, float]], texts: Sequence[str], start: int) -> list[tuple[str, int, float]]:
    """The names, metrics of the split that the first has, or the text before it from ``start`` on, such as those of
    ``valid loss 0.7, acc 0.9`` and ``Dev scores: acc 0.9``, unless the line has training."""
    metrics = [one for one in names if better(f"val/{one[0]}")]
    lead = "".join(texts[:metrics[0][1] + 1])[start:] if metrics and "train" not in "".join(texts).lower() else ""
    others = [metric for metric in metrics if "loss" not in metric[0].lower()]
    split = {place: name for name, place, _ in _of_split(others, lead)}
    return [(split.get(place, name), place, scale) for name, place, scale in names]


def recognises(path: str, line: re.Pattern | None = None) -> bool:
    """Whether a text file has such a line near its start."""
    if line:
        return any(map(line.search, head_of(path, ENDS)))
    forms = (Form(NUMBER.split(CONTROL.sub("", text))[::2]) for text in head_of(path, ENDS)
             if any(map(str.isdigit, text)))
    return any(form.step is not None or form.epoch is not None for form in forms)


def read(path: str, line: re.Pattern | None = None) -> Iterator[FoundRun]:
    """The file's run: each name before a number is a tag, a time with its unit becomes seconds of the step; ``line``:
    another pattern, whose groups are the tags, as far as they are numbers."""
    try:
        with open_input(path) as file:
            lines = io.TextIOWrapper(file, encoding_of(file.peek(2)), "replace")
            if not line:
                yield _read_forms(lines, path)
                return
            series = series_of({name: value for name, text in found.groupdict().items() if text
                                and (value := number_of(text.replace(",", ""))) is not None}
                               for found in map(line.search, lines) if found)
    except OSError as error:
        raise WrongFile(f"{path}: {refusal(error)}") from None
    yield FoundRun(path, NAME, constants_of(series), series)


def _read_forms(lines: Iterator[str], path: str) -> FoundRun:
    forms: dict[tuple[str, ...], Form] = {}
    given: dict[str, Any] = {}
    head, begun, below, split, form, failed, line = 0, False, 0, "", None, False, "\n"
    for at, line in enumerate(lines):
        form, text, failed = None, line, failed or "Traceback (most recent call last)" in line
        text = CONTROL.sub("", text) if "\x1b" in text or "it/s]" in text or "s/it]" in text else text
        text = f" {text}" if "/" in text[:20] and ENDED.match(text) else text          # of the epoch above
        passing = BAR.search(text)
        head = head if passing or text[:1] in " \t" else at
        if text.rstrip()[-1:] in "*=#<>-:" and (found := HEADLINE.search(text[-LONGEST_TAG:])) and (
                begun and not found[0].isupper() or not found["plain"]):
            split, below = split_of(own[0]) if (own := SPLIT.search(text)) else "", at
            if own or not COUNTED.search(NUMBER.split(text)[0]):            # else **** EPOCH 001 ****
                continue
        if "maxDets" in text and (found := COCO.search(text)):
            text = f"val {''.join(filter(None, found.groups()))} = {text.rpartition('=')[2]}"       # AP50
        pieces = NUMBER.split(text.rstrip("\n"))
        if not begun and at < PREAMBLE:
            given |= {name: value if given.get(name, value) == value else None      # said twice, and differently
                      for name, value in _settings(text).items()}
        if len(pieces) == 1 or text.lstrip().startswith('File "') or passing:         # of a traceback
            continue
        if split and sum(any(map(str.isalpha, text)) for text in pieces[:-1:2]) > 1 and any(
                COUNTED.search(text[-LONGEST_TAG:]) for text in pieces[:-1:2]):
            split = ""                          # a counter and more, as in lines of training: the block is over
        named = split and any(text.rstrip()[-1:] in (":", "=") for text in pieces[:-1:2])
        key = (f"[{split}] {pieces[0].lstrip()}" if named else pieces[0], *pieces[2::2])
        form = forms.get(key)
        if form is None:
            form = forms[key] = Form(key)
            if {form.step, form.epoch} != {None} and any(
                    key[place + 1] == "," and "." not in pieces[2 * place + 1] and (
                        better(f"val/{name}") or pieces[2 * place + 1] == "0" and len(pieces[2 * place + 3]) > 1)
                    for name, place, _ in form.tags):
                raise WrongFile(say("commas", path=path, line=str(at + 1), SED=r"'s/([0-9]),([0-9])/\1.\2/g'"))
        if form.used:
            counted = form.step is not None or form.epoch is not None
            begun, failed = begun or counted, failed and not counted
            form.add(below if split else at, head, pieces[1::2])
    found = [form for form in forms.values() if form.used]
    torn = not line.endswith("\n") and form and len(form.lines) == 1 and any(
        other.texts[0] == form.texts[0] and len(other.lines) > 1 for other in found)
    series, epoch_steps = _series(found)
    lost = [name for form in found if len(form.lines) > 1 for name, place, _ in form.tags if name not in series and (
        better(f"val/{name}")) and place not in {place for _, place, _ in form.aside}]
    unfinished = "its log ends in a traceback" if failed else ""
    unfinished = "its log ends within a line" if torn else unfinished
    return FoundRun(path, NAME, {**given, **constants_of(series)}, series, STEP in series, unfinished,
                    epoch_steps=epoch_steps, left_out=dict.fromkeys(lost, "its lines name no step, or no split"))


def _series(forms: Sequence[Form]) -> tuple[dict[str, Series], int | None]:
    """The series of the lines that name a step, or else an epoch, and of those that belong to them."""
    steps = max((form.measures for form in forms if form.step is not None), default=-1) >= max(
        (form.measures for form in forms if form.step is None and form.epoch is not None), default=0)
    own = [form for form in forms if (form.step if steps else form.epoch) is not None]
    if not own:
        return {}, None
    counts = (main := max(own, key=lambda form: len(form.lines))).column(main.step) if steps else np.zeros(0)
    rows = np.sort(np.concatenate([np.frombuffer(form.lines, np.int64) for form in own]))
    points: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    totals: list[np.ndarray] = []

    def add(form: Form, at: np.ndarray, tags: Sequence[tuple[str, int, float]], which: np.ndarray | slice) -> None:
        for name, place, scale in tags if len(at) else ():
            points.setdefault(name, []).append((at, form.column(place)[which] * scale))
    asides = []
    for form in forms:
        at = np.frombuffer(form.lines, np.int64)
        if form in own:
            many = 1.0 if form.step is None else MANY.get(GLUED.match(form.texts[form.step + 1])[0].lower(), 1.0)
            counters = [(STEP, form.step, many), (EPOCH, form.epoch, 1.0), (WITHIN, form.within, 1.0)]
            again = 2 * len(at) <= len(counts) and np.isin(form.column(form.step), counts)
            means = {name for name, *_ in main.tags} if np.all(again) and (np.diff(counts) > 0).all() else ()
            tags = [one for one in (*counters, *form.tags) if one[1] is not None and one[0] not in means]
            add(form, at, tags, slice(None))
            if form.total is not None and form.epoch is not None:
                totals.append(form.column(form.total))
            continue
        heads = np.frombuffer(form.heads, np.int64) if form.indented else at
        below = np.isin(heads, rows) & form.indented
        add(form, heads[below], form.tags, below)
        asides.append((form, ~below))
    if not any(NAMED.match(name) and better(f"val/{name}") for form in own for name, *_ in form.tags):
        counters = {tag: joined(points[tag]) for tag in (STEP, EPOCH) if tag in points}
        for form, which in asides:
            at = np.frombuffer(form.lines, np.int64)
            which = which & (at >= rows[0]) if form.aside else np.zeros(len(at), bool)
            add(form, at[which], form.aside, which)
            for tag, series in counters.items():
                before = np.searchsorted(series.rows, at[which], side="right") - 1
                values = series.values[before]
                if tag == EPOCH and form.epoch is not None and form.epoch in form.used:
                    values = form.column(form.epoch)[which]
                points[tag].append((at[which][before >= 0], values[before >= 0]))
    lengths = np.concatenate([np.zeros(0), *totals])
    return {tag: joined(found) for tag, found in points.items() if sum(len(at) for at, _ in found)}, \
        int(np.median(lengths)) if len(lengths) and np.ptp(lengths) <= 0.02 * lengths.max() else None


def joined(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Series:
    """One series of several, in order of rows; of two points of a row the later."""
    at, values = (np.concatenate(parts) for parts in zip(*found))
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    last = np.append(at[1:] != at[:-1], True)
    return Series(at[last], values[last])


def _settings(text: str) -> dict[str, Any]:
    if len(text) > 10_000:
        return {}
    if found := DOTTED.match(text):
        return {found[1]: value_of(found[2])}
    text = STAMPED.sub("", text)
    if "(" in text and text.count("=") > 1 and not MODULE.match(text):
        return {found["name"]: value_of(found["value"]) for found in GIVEN.finditer(text)}
    found = SETTING.match(text)
    return {found["name"]: value_of(found["value"].strip("\"'"))} if found else {}
