"""The sweep file: search space, global batches, budget, and objective; the guide to searches shows a whole one.

``hvdscale.sweep.settings`` reads the tables [space.X] and [batch.N.space.X].
"""

import re
from dataclasses import dataclass

from ..errors import UsageError
from ..plan.batch_schedule import STAYS
from ..plan.search_space import STEPS_TO_TARGET, Parameter
from ..plan.settings import NO_CLASS, OPTIMIZERS, Settings, read
from ..plan.values import none_of
from ..target import Target
from .ledger import FIRST_REPEAT
from .settings import (BUDGETS, ELSEWHERE, HVDSCALE_TRAIN, OF_DATA, REQUIRED, Dimension, Keys, TomlTable, checked_key,
                       overridden, parameter_tables, read_settings, read_table, refuse_untaken, settle, takes)

COUNTS = ("trials", "max_draws")
TOP = ("workload", "batch_sizes", "optimizer", "optimizers", *COUNTS, "targets", "objective", *BUDGETS, "evaluations",
       "repeats", "workers_per_trial", "prune", "prune_keep", "seed", "settings", "space", "batch")
OF_BATCH = (*BUDGETS, *COUNTS, "settings", "space")


@dataclass(frozen=True)
class StudySpec:
    """A study as asked: the search at one global batch with one optimizer."""

    optimizer: str
    global_batch: int                   # of the first step, where a batch_schedule in the settings changes it
    trials: int                         # feasible ones, of at most max_draws
    max_draws: int
    layer: dict                         # settings of all trials: without lr, seed, target and evaluation grid
    dimensions: tuple[Dimension, ...]   # of the space; those in shares of the budget are settled later

    @property
    def name(self) -> str:
        """The study's name in files: nesterov-b256."""
        return f"{name_in_files(self.optimizer)}-b{self.global_batch}"

    def space(self, budget_steps: int) -> tuple[Parameter, ...]:
        return tuple(dimension.over(budget_steps) for dimension in self.dimensions)


@dataclass(frozen=True)
class Sweep:
    workload: str
    optimizers: tuple[str, ...]
    targets: tuple[Target, ...]         # easiest first, strictest last
    objective: str                      # "steps", or a column whose best value within the budget counts
    evaluations: int | None             # over the budget; None: on the grid of the settings
    repeats: int
    workers_per_trial: int
    keep: int | None                    # best trials that pruning preserves; None: no pruning
    seed: int
    settings: dict
    studies: tuple[StudySpec, ...]
    record: dict                        # the file's content by its own keys, for JSON

    @property
    def by_steps(self) -> bool:
        """Whether trials are ranked by steps to the strictest target."""
        return self.objective == STEPS_TO_TARGET


def name_in_files(optimizer: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", optimizer)


def read_sweep(path: str) -> Sweep:
    """The sweep of a TOML file; raises UsageError naming file, table and key for an invalid one."""
    top = read_table(path)
    top.only(TOP, {**dict.fromkeys(HVDSCALE_TRAIN, "a key of hvdscale-train belongs in [settings]"), **ELSEWHERE})
    workload, optimizers, targets = top.take("workload", str), read_optimizers(top), read_targets(top)
    objective, counts = read_objective(top, targets), read_counts(top)
    workers = top.take("workers_per_trial", int, 1, least=1)
    batch_sizes = read_batch_sizes(top, workers)
    evaluations = top.take("evaluations", int, None, least=1)
    prune = top.take("prune", bool, objective == STEPS_TO_TARGET)
    if prune and objective != STEPS_TO_TARGET:
        raise top.wrong(f"prune = true stops trials that have lost the race to a target, but the best {objective} may "
                        "come at the end of the budget; leave prune out, or the objective", "prune")
    settings, space = top.table("settings"), parameter_tables(top.table("space"))
    batches = read_batches(top, batch_sizes)
    for name, table in space.items():
        refuse_untaken(table, name, optimizers)
    for table in (settings, *(own.table("settings") for own in batches.values())):
        for name in table:
            refuse_untaken(table, name, optimizers, name)
    if "lr" not in space:
        raise top.wrong("has no [space.lr]; the learning rate is searched at every batch, such as [space.lr] with "
                        "scale = 'log', min = 1e-4, max = 10", "space")

    studies = tuple(read_study(top, space, batches[batch], evaluations, optimizer, batch)
                    for optimizer in optimizers for batch in batch_sizes)
    budget = read_budget(top)
    record = {
        "workload": workload, **counts, "objective": objective, "evaluations": evaluations,
        "repeats": top.take("repeats", int, 0, least=0, below=100), "workers_per_trial": workers, "prune": prune,
        "prune_keep": top.take("prune_keep", int, 5, least=1), "seed": top.take("seed", int, 0, least=0, below=2**62),
        "settings": read_settings(settings), "space": {name: dict(table) for name, table in space.items()}, **budget,
        "batch_sizes": list(batch_sizes), "optimizers": list(optimizers), "targets": list(map(str, targets)),
        "batch": {str(batch): batch_record(own) for batch, own in batches.items() if own}}
    return Sweep(workload, optimizers, targets, objective, evaluations, record["repeats"], workers,
                 record["prune_keep"] if record["prune"] else None, record["seed"], record["settings"], studies, record)


def read_optimizers(top: TomlTable) -> tuple[str, ...]:
    """The optimizers, without repetition; ``optimizer`` gives a single one."""
    key = "optimizer" if "optimizer" in top and "optimizers" not in top else "optimizers"
    if key == "optimizers" and "optimizer" in top:
        raise top.wrong("optimizer and optimizers are alternatives; give one of them", "optimizer")
    names = [top.take(key, str)] if key == "optimizer" else top.take(key, list)
    for name in names:
        if type(name) is not str or (name not in OPTIMIZERS and ":" not in name):
            raise top.wrong(f"{key}: {none_of(name, OPTIMIZERS, NO_CLASS)}", key)
    _refuse_repeated(top, key, names, "such as ['sgd', 'nesterov']")
    return tuple(names)


def read_batch_sizes(top: TomlTable, workers: int) -> tuple[int, ...]:
    sizes = top.take("batch_sizes", list)
    for size in sizes:
        if type(size) is not int or size < 1:
            raise top.wrong(f"batch_sizes: {size!r} is not a whole number of at least 1", "batch_sizes")
        if size < workers:
            raise top.wrong(f"batch_sizes: {size} leaves some of workers_per_trial = {workers} without an example; "
                            "leave it out, or use fewer workers", "batch_sizes")
    _refuse_repeated(top, "batch_sizes", sizes, "such as [32, 128, 512]")
    return tuple(sorted(sizes))


def _refuse_repeated(top: TomlTable, key: str, values: list, example: str) -> None:
    if not values:
        raise top.wrong(f"{key} = [] holds none; give some, {example}", key)
    for value in values:
        if values.count(value) > 1:
            raise top.wrong(f"{key} = {values!r} holds {value!r} twice; each is searched once", key)


def read_targets(top: TomlTable) -> tuple[Target, ...]:
    targets = []
    for text in top.take("targets", list, []):
        try:
            targets.append(Target.parse(text))
        except (UsageError, TypeError) as error:
            said = str(error) if isinstance(error, UsageError) else f"{text!r} is not text such as 'val/error<0.01'"
            raise top.wrong(f"targets: {said}", "targets") from None
    if len({(target.column, target.minimizes) for target in targets}) > 1:
        raise top.wrong(f"targets: {' and '.join(map(str, targets))} are not of one metric and direction; a sweep has "
                        "one metric's targets", "targets")
    if len(set(targets)) < len(targets):
        raise top.wrong(f"targets: {', '.join(map(str, targets))} holds one twice", "targets")
    return tuple(sorted(targets, key=lambda target: (
        -target.value if target.minimizes else target.value, "=" not in target.comparison)))


def read_objective(top: TomlTable, targets: tuple[Target, ...]) -> str:
    """``steps``, which requires a target, or a metric's column."""
    objective = top.take("objective", str, STEPS_TO_TARGET)
    if objective == STEPS_TO_TARGET:
        if not targets:
            raise top.wrong("has no target to count steps to; give targets, such as ['val/error<0.01'], or an "
                            "objective such as 'val/error' for its best value within the budget", "targets")
        return objective
    try:
        return Target.parse(f"{objective}<0").column
    except UsageError:
        raise top.wrong(f"objective = {objective!r} is neither 'steps' (the fewest to the strictest target) nor a "
                        "split/metric such as 'val/error' (its best value within the budget)", "objective") from None


def read_counts(table: TomlTable, trials=REQUIRED, max_draws: int | None = None) -> dict[str, int]:
    """A study's feasible trials and draws: from a batch's table, with defaults for all batches."""
    trials = table.take("trials", int, trials, least=1, below=FIRST_REPEAT)
    given = table.take("max_draws", int, max_draws, least=1, below=FIRST_REPEAT)
    if given is not None and given < trials:
        raise table.wrong(f"max_draws = {given} are too few for trials = {trials}; give at least as many",
                          "max_draws" if "max_draws" in table else "trials")
    return {"trials": trials, "max_draws": min(3 * trials, FIRST_REPEAT - 1) if given is None else given}


def read_budget(table: TomlTable) -> dict:
    given = [name for name in BUDGETS if name in table]
    if len(given) > 1:
        first, second = (f"{name} = {table[name]}" for name in given[:2])
        raise table.wrong(f"{first} and {second} are alternatives; give one of them", given[1])
    return dict(checked_key(table, name) for name in given)


def read_batches(top: TomlTable, batch_sizes: tuple[int, ...]) -> dict[int, TomlTable]:
    tables = top.table("batch")
    for name in tables:
        if name not in map(str, batch_sizes):
            raise tables.wrong(f"{name} is none of the batch_sizes, {', '.join(map(str, batch_sizes))}", name)
        tables.table(name).only(OF_BATCH, {
            **dict.fromkeys(HVDSCALE_TRAIN, f"a key of hvdscale-train belongs in [batch.{name}.settings]"), **ELSEWHERE,
            **dict.fromkeys(TOP, "it is one for all batches, at the top of the file, before the first [table]")})
        own = tables.table(name).table("settings")
        for key in OF_DATA:
            if key in own:
                raise own.wrong(f"{key} is one for all batches, as the data is read once; set it in [settings]", key)
    return {batch: tables.table(str(batch)) for batch in batch_sizes}


def batch_record(own: TomlTable) -> dict:
    tables = {"settings": read_settings(own.table("settings")),
              "space": {name: dict(table) for name, table in parameter_tables(own.table("space")).items()}}
    return {**read_budget(own), **{name: own[name] for name in COUNTS if name in own},
            **{name: table for name, table in tables.items() if table}}


def read_study(top: TomlTable, space: dict[str, TomlTable], own: TomlTable, evaluations: int | None, optimizer: str,
               batch: int) -> StudySpec:
    """The study of an optimizer at a batch: settings for all batches, overridden by the batch's own table."""
    overs = parameter_tables(own.table("space"))
    for name, table in overs.items():
        if name not in space:
            raise table.wrong(f"{name} is not searched at the other batches; give [space.{name}] for all")
    dimensions = tuple(settle(name, overridden(space[name], overs.get(name)), batch)
                       for name in sorted(space) if takes(optimizer, name))     # whatever their order in the file
    tables = [top.table("settings"), own.table("settings")]
    settings = Settings.build({}, *map(read_settings, tables)).asked()
    keys = Keys({name: value for name, value in settings.items() if takes(optimizer, name)},
                {read(name, value)[0]: (table, name) for table in tables for name, value in table.items()},
                {dimension.parameter.name: dimension.parameter for dimension in dimensions}, space)
    keys.refuse_conflicts()
    if not (budget := read_budget(own) or read_budget(top)):
        raise top.wrong(f"has no budget at batch {batch}; give one, such as budget = '10 epochs'")
    refuse_grid(top, keys, evaluations, budget)
    for dimension in dimensions:
        table = space[dimension.parameter.name]
        if dimension.shares and "seconds" in budget:
            raise table.wrong("scaled = 'budget' needs a budget with a last step, and this one is in seconds; give "
                              "bounds in steps, or another budget", "scaled")
        if dimension.shares and "steps" in budget:
            try:
                dimension.over(budget["steps"])
            except UsageError as error:
                raise table.wrong(str(error)) from None

    counts = read_counts(own, **{"max_draws": None, **{name: top[name] for name in COUNTS if name in top}})
    layer = {**keys.layer(), **budget, "optimizer": optimizer}
    if (schedule := Settings.build({}, layer).batch_schedule) is None:
        layer["global_batch"] = batch
    elif schedule.amount[0][1] != batch:
        raise keys.wrong(f"batch_schedule = {schedule} begins at another batch than that of the study, {batch}; give "
                         "it in the [batch.N.settings] of the batch at which it begins", "batch_schedule")
    elif layer["lr_rule"] == "none":
        layer.setdefault("batch_schedule_lr", STAYS)        # the same, and so said in tuned.toml
    return StudySpec(optimizer, batch, layer=layer, dimensions=dimensions, **counts)


def refuse_grid(top: TomlTable, keys: Keys, evaluations: int | None, budget: dict) -> None:
    given = "eval_every" in keys
    if evaluations is not None and given:
        raise keys.wrong("eval_every and evaluations are alternatives; give one of them", "eval_every")
    if evaluations is not None and "seconds" in budget:
        raise top.wrong(f"evaluations = {evaluations} cannot be spread over a budget in seconds, whose last step is "
                        "not known; give eval_every in [settings] instead", "evaluations")
    if evaluations is None and not given:
        ways = "" if "seconds" in budget else "evaluations = 60 at the top, for as many at every batch, or "
        raise top.wrong(f"does not say when trials are evaluated; give {ways}eval_every in [settings], such as '1 "
                        "epoch'")
