"""The log's layout, version 1: four tables of columns, so that a file holds one trial or 200,000 alike.

/trials, /restarts, /evaluations and /steps are HDF5 groups; a column is a dataset with one entry a row. Integers are
int64, measurements float64 (NaN: not measured), a status is an HDF5 enum of int8. A text column is int64 of shape
(rows, 2): where the entry starts in ``/text`` (uint8, UTF-8) and how many bytes it has. Each table's ``committed_rows``
(int64, shape (1,)) says how many rows are whole; what lies beyond was being written. Each column carries its unit and
meaning as attributes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

FORMAT = "hvdscale-log"
VERSION = 1
UNKNOWN_SEED = -1           # of a run from elsewhere that names none: no other run has the same seed
INTERRUPTED = "interrupted: the process that wrote the log ended without a word"
PRUNED = "pruned"           # how the reason of a trial that its search has stopped begins
CUT_SHORT = "cut short"     # and that of an imported one that counts as far as it was evaluated


class Status(IntEnum):
    """What became of a trial (Shallue et al. 2019): COMPLETE reached its budget or the target it was to stop at."""

    RUNNING = 0
    COMPLETE = 1
    INCOMPLETE = 2
    INFEASIBLE = 3


SMALLER, LARGER = "smaller", "larger"
DIRECTIONS = {"min": SMALLER, "max": LARGER}        # as workloads and loops declare which way a metric gets better


@dataclass(frozen=True)
class LogColumn:
    """One column: its name in the table, its type (int, float, text or status), unit ("1": a pure number) and meaning.
    An optional one may be absent from a log; readers then give NaN. ``better`` says of a metric which way it gets
    better, "smaller" or "larger"; "": unknown."""

    name: str
    type: str
    unit: str
    meaning: str
    optional: bool = False
    better: str = ""


_optional = partial(LogColumn, optional=True)
TRIALS = (
    LogColumn("id", "int", "1", "the trial's number, unique in this log"),
    LogColumn("status", "status", "1", "RUNNING, COMPLETE, INCOMPLETE or INFEASIBLE"),
    LogColumn("stop_reason", "text", "1", "why the trial ended, in words; empty while it runs"),
    LogColumn("dataset", "text", "1", "the data set's name"),
    LogColumn("model", "text", "1", "the model's name"),
    LogColumn("optimizer", "text", "1", "the optimizer's name"),
    LogColumn("global_batch", "int", "examples", "B: examples averaged into one step by all workers"),
    LogColumn("local_batch", "int", "examples",
              "b: the most examples that one worker passes through the model at once"),
    LogColumn("accumulation", "int", "1", "k: passes through the model that one worker adds up for one step"),
    LogColumn("ghost_batch", "int", "examples", "examples that share batch statistics and dropout streams"),
    LogColumn("workers", "int", "1", "W: workers at the trial's start"),
    LogColumn("seed", "int", "1", "seed of every random stream of the trial"),
    LogColumn("budget_steps", "int", "steps", "steps allowed; 0: the budget is in seconds"),
    LogColumn("plan", "text", "1", "JSON: all that was asked for and derived before the first step"),
)
RESTARTS = (
    LogColumn("trial", "int", "1", "the trial's id"),
    LogColumn("first_step", "int", "steps", "steps already done when this process started"),
    LogColumn("workers", "int", "1", "W in this process's run"),
    LogColumn("host", "text", "1", "rank 0's host name"),
    LogColumn("device", "text", "1", "what the workers compute on"),
    LogColumn("time", "float", "seconds", "start of the process, since 1970-01-01 UTC"),
    LogColumn("previous_end", "text", "1", "why the process before this one ended; empty for the first"),
    _optional("startup_seconds", "float", "seconds",
              "from the process's start to its first step: imports, data, state"),
)
EVALUATIONS = (
    LogColumn("trial", "int", "1", "the trial's id"),
    LogColumn("step", "int", "steps", "steps done when evaluated"),
    LogColumn("examples", "int", "examples", "training examples seen in those steps"),
    LogColumn("train_seconds", "float", "seconds", "time spent in those steps, evaluation left out"),
    _optional("waited_seconds", "float", "seconds", "its part without a core, where a search logs no steps"),
)
STEPS = (
    LogColumn("trial", "int", "1", "the trial's id"),
    LogColumn("step", "int", "steps", "steps done, this one included: the first row says 1"),
    LogColumn("loss", "float", "1", "training loss over the global batch, before the step's update"),
    LogColumn("lr", "float", "1", "learning rate of the step"),
    LogColumn("step_seconds", "float", "seconds", "time of the step on rank 0"),
    _optional("global_batch", "float", "examples", "B of the step, where it changes during training"),
    _optional("tokens", "float", "tokens", "tokens of the step that its loss counts"),
    _optional("loss_scale", "float", "1", "factor on the loss in the step, for fp16 gradients"),
    _optional("skipped_updates", "float", "1", "1: no update, as the step's fp16 gradient overflowed; else 0"),
    _optional("data_seconds", "float", "seconds", "its part spent getting the batch"),
    _optional("compute_seconds", "float", "seconds", "its part in the model and the optimizer"),
    _optional("communication_seconds", "float", "seconds", "its part waiting for the allreduce"),
    _optional("without_core_seconds", "float", "seconds", "its part without a core, of the worker that fared worst"),
    _optional("local_sqnorm", "float", "1", "mean over shares, weighted by their examples, of the square norm of their "
              "own gradients; a share is a worker's, or at one worker a part of its batch"),
    _optional("reduced_sqnorm", "float", "1", "square norm of the gradient averaged over the global batch"),
    _optional("local_examples", "float", "examples", "mean over shares of their example counts"),
    _optional("replica_distance", "float", "1", "before a synchronization: root mean square over the replicas of the "
              "norm of their weights' difference from the mean"),
    _optional("outer_step", "float", "1", "norm of the synchronization's change of the weights since the last one"),
    _optional("exchange_error", "float", "1", "root mean square over the replicas of the norm of what is unsent yet"),
)
SCHEMA = {"trials": TRIALS, "restarts": RESTARTS, "evaluations": EVALUATIONS, "steps": STEPS}    # all but a log's own
TABLES = tuple(SCHEMA)
KNOWN = {table: {column.name: column for column in found} for table, found in SCHEMA.items()}
STEP_PARTS = ("data_seconds", "compute_seconds", "communication_seconds")        # of step_seconds, in this order

# of an update as each rank saw it, in this order; what is in none of them the rank spent elsewhere
RANK_PARTS = {"step": "the step", "data": "getting the batch", "forward": "the forward pass, the loss included",
              "backward": "the backward pass, until the last gradient",
              "waiting": "waiting for the other ranks and for the reduction",
              "optimizer": "the optimizer's step"}
rank_column = "ranks/{}/{}_seconds".format      # of a rank and one of these: the name of its optional column of /steps

# columns of /trials in a file that several logs were merged into
SOURCE = (
    _optional("source", "text", "1", "JSON: path and root attributes of the log the trial was merged from"),
    _optional("source_trial", "int", "1", "the trial's id in that log"),
)


def column_of(table: str, name: str, better: str = "") -> LogColumn:
    """The column of a ``split/metric``, of ``metaparameters/<name>``, or of a rank's part of the step."""
    above, _, rest = name.partition("/")
    if table == "trials":
        return LogColumn(name, "float", "1", f"{rest}, as the plan settled it")
    if table == "steps" and above == "ranks" and rest.count("/") == 1:
        rank, _, part = rest.partition("/")
        what = RANK_PARTS.get(part.removesuffix("_seconds"), "a part of the step")
        return _optional(name, "float", "seconds", f"time of rank {rank} in {what}")
    return LogColumn(name, "float", "1", f"{rest} on the {above} split", better=better)


def columns(metaparameters: Iterable[str] = (), metrics: Iterable[str] | Mapping[str, str] = (),
            optional: Collection[str] = (), ranks: int = 0) -> dict[str, list[LogColumn]]:
    """Each table's columns for a log with these metaparameters, metrics (``split/metric``), optional columns by name,
    and ranks that timed their steps.

    metrics  names, or a mapping of names to the better way: see LogColumn
    """
    better = metrics if isinstance(metrics, Mapping) else {}
    found = {table: [column for column in spec if not column.optional or column.name in optional]
             for table, spec in SCHEMA.items()}
    found["trials"] += (column_of("trials", f"metaparameters/{name}") for name in metaparameters)
    found["evaluations"] += (column_of("evaluations", name, better.get(name, "")) for name in metrics)
    found["steps"] += (column_of("steps", rank_column(rank, part)) for rank in range(ranks) for part in RANK_PARTS)
    return found
