"""hvdscale-plan: how many workers to take, from logs, without torch."""
from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..analysis.defaults import confidence_of
from ..errors import UsageError
from ..formatting.numbers import listed, number, percent
from ..plan.values import check_value, none_of
from ..system.inputs import input_text
from ..target import Target
from .common import (CONTEXT, Command, confidence_option, echo, formats_of, formats_option, full_option,
                     general_options, paths, slow_imports)

if TYPE_CHECKING:               # slow imports, which --help can do without
    from ..analysis.size.sizes import Size
    from ..analysis.step_time import Links
    from ..analysis.steps_curve import StepsPoint
    from ..analysis.worker_plan import Request
    from ..plan.batch_schedule import BatchSchedule

TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(min|[smhd])\s*")
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
NUMBERS = ("per_node", "price", "memory", "power", "bandwidth", "latency")       # of a machine's file
OF_LINKS = ("bandwidth", "latency")
OF_TIMES = ("workers", "nodes", "price", "per_node", "deadline", "budget", "global_batch", "accumulate", "knee",
            "times_from", "network", "bandwidth", "latency", "parameters", "noise_scale", "steps", "batch_schedule",
            "memory", "power", "runs", "relaunch")


def read_machine(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Makes the keys of a machine's file the defaults of the options of their names."""
    try:
        context.default_map = None if path is None else machine_of(path)
    except UsageError as error:                     # click has not invoked the command yet, which would end with it
        raise click.UsageError(str(error)) from None


def machine_of(path: str) -> dict[str, Any]:
    try:
        values = json.loads(input_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--machine {path}: is no file of JSON that can be read: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"--machine {path}: is no JSON object, such as {{\"per_node\": 8, \"price\": 32}}")
    for key, value in values.items():
        if key == "network":
            files = [value] if isinstance(value, str) else value
            if not isinstance(files, list) or not files or not all(isinstance(file, str) for file in files):
                raise UsageError(f"--machine {path}: network = {value!r} is not a file or a list of files")
            values[key] = [os.path.join(os.path.dirname(path), file) for file in files]
        elif key not in NUMBERS:
            raise UsageError(f"--machine {path}: {none_of(key, [*NUMBERS, 'network'])}")
        else:
            check_value(f"--machine {path}: {key}", value, int if key == "per_node" else float)
    return values


@click.command(cls=Command, context_settings=CONTEXT, few="--target --workers --nodes --price --per-node --deadline "
               "--budget --local-batch --global-batch --times-from --network --size --out --full --skip-broken")
@click.argument("logs", nargs=-1, required=True, metavar="LOGS...", shell_complete=paths)
@click.option("--target", "targets", multiple=True, metavar="TARGET",
              help="Such as 'val/error<0.01'; may be given several times. Without it each trial's own.")
@click.option("--workers", multiple=True, default=("1-1024",), show_default=True, metavar="LIST",
              help="Worker counts: 1,2,4,8 or 1-1024, which is the doublings between, by whole nodes.")
@click.option("--nodes", metavar="LIST", help="Numbers of nodes in place of --workers, each with --per-node workers.")
@click.option("--machine", metavar="FILE", is_eager=True, expose_value=False, callback=read_machine,
              shell_complete=paths, help="JSON of the machine to plan for: " + ", ".join((*NUMBERS, "network")) + ", "
              "each as the option of that name, which overrides it.")
@click.option("--price", type=float, metavar="P",
              help="Price of a node-hour, or without --per-node of a worker-hour. Without it costs are in these hours.")
@click.option("--per-node", type=int, metavar="N",
              help="Workers on a node; the price is for whole nodes. Without it each worker is paid separately, and "
                   "steps take as long as with the most workers on a node that the logs had.")
@click.option("--runs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Runs of the proposed campaign: node-hours and energy are their sum.")
@click.option("--power", type=float, metavar="W", help="Watts of a node, or without --per-node of a worker, for the "
              "energy. Without it that of the GPUs, where logs have it.")
@click.option("--deadline", metavar="TIME", help="Time within which to reach the target: 90m, 2h, 1d, 1h30m.")
@click.option("--budget", type=float, metavar="COST", help="Cost within which to reach it, in the unit of the price.")
@click.option("--local-batch", type=int, metavar="N", help="Examples per worker: the batch grows with them.")
@click.option("--global-batch", type=int, metavar="N", help="The same batch at every worker count. Without either: the "
              "batch with the least time to target at each.")
@click.option("--max-local-batch", type=int, metavar="N",
              help="Examples that fit a worker's memory. Without it the most in the logs.")
@click.option("--memory", type=float, metavar="GiB", help="Memory of a worker: bounds its examples by the memory use "
              "that logs of hvdscale-scale script measured.")
@click.option("--accumulate", is_flag=True, help="Several passes may make one step, where a batch does not fit.")
@click.option("--knee", type=float, default=1.0, show_default=True, metavar="X",
              help="The knee has the least cost x time^X: a percent of time is worth X percent of cost.")
@click.option("--times-from", multiple=True, metavar="LOGS", shell_complete=paths,
              help="Logs that alone give step times, such as those of hvdscale-scale script, or of --probe, on the "
                   "machine to plan for; LOGS then give the steps. May be given several times.")
@click.option("--network", multiple=True, metavar="FILE", shell_complete=paths, help="Bandwidth and latency between "
              "nodes from the output of nccl-tests' all_reduce_perf, or OSU's osu_allreduce, osu_latency or osu_bw; "
              "FILE@4: on four nodes, where it does not say. May be given several times.")
@click.option("--bandwidth", type=float, metavar="GB/s", help="Bandwidth between nodes, as of an allreduce benchmark.")
@click.option("--latency", type=float, metavar="us", help="Time of a hop between nodes, in microseconds.")
@click.option("--parameters", metavar="COUNT", help="Parameters of the model, such as 25.6M, for the allreduce. "
              "Without it those of the logs, where they have them.")
@click.option("--noise-scale", type=float, metavar="EXAMPLES", help="Gradient noise scale, in place of the logs' own.")
@click.option("--steps", metavar="S@B", help="Steps to target S known at global batch B, such as 860@32, where no log "
              "was held against a target.")
@click.option("--batch-schedule", metavar="LIST", help="Also predict a batch that grows, such as "
              "'[[0, 64], [2000, 128]]': each batch with its first step. Those in the logs are shown as measured.")
@click.option("--relaunch", metavar="TIME", help="Time to relaunch with another number of workers, queue included, "
              "such as 90s, where it changes with the batch. Without it the logs' median start-up.")
@click.option("--size", "wanted", multiple=True, metavar="NAME=VALUE",
              help="Plan for a size that was not run, such as parameters=7e9, from laws over those that were: batch, "
                   "rate, steps and workers, without times and costs. May be given several times.")
@click.option("--size-from", multiple=True, metavar="NAME=PATTERN",
              help="Take the size of LOGS from their workloads' names by a pattern, such as "
                   "'parameters=gpt_([0-9.]+[MB])'. Without it LOGS have it, as hvdscale-report --size says.")
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Take searches at the median best of N trials, "
              "and leave out batches with fewer. Without it N is the smallest number of trials of any batch.")
@confidence_option
@click.option("--out", metavar="DIR", shell_complete=paths, help="Write plan.json, tables/ and figures/ there.")
@formats_option
@full_option
@click.option("--skip-broken", is_flag=True, help="Skip logs that cannot be read, and name them.")
@general_options
@click.pass_context
def main(context, logs, targets, out, formats, full, skip_broken, network, bandwidth, latency, parameters, noise_scale,
         steps, trials, batch_schedule, times_from, wanted, size_from, **asked):
    """Time and cost to a target by worker count, and how many workers to take, from LOGS: log files, or directories.

    Worker counts and batches that were run are as measured, others by step-time laws, and marked. None is recommended
    beyond 4 times the most workers timed (16 times where repeats time a step to 2 %, or the network is given). Before
    any full run, logs of hvdscale-scale --probe with the gradient noise scale give a prediction.

    \b
      hvdscale-plan sweeps/mnist runs/*.h5 --price 2.5 --workers 1-1024
      hvdscale-plan runs --per-node 8 --price 32 --deadline 2h --budget 500
      hvdscale-plan runs --machine cluster.json --nodes 1-64 --runs 12 --out proposal
    """
    with slow_imports():
        from ..analysis.report_data import Options
        from ..report.plan.make import make_plan, make_size_plan
    request = request_of(context, asked)
    if wanted or size_from:
        for option in context.command.params:
            if option.name in OF_TIMES and context.get_parameter_source(option.name) != ParameterSource.DEFAULT:
                raise UsageError(f"{option.opts[0]} beside --size: a size that was not run has no step times, so its "
                                 f"plan is without times and costs; leave out {option.opts[0]}")
        sizes, values = wanted_sizes(wanted, size_from)
        make_size_plan(logs, [Target.parse(target) for target in targets], values, sizes,
                       options=Options(confidence=request.confidence, trials=trials),
                       local_batch=request.max_local_batch or request.local_batch, skip_broken=skip_broken, out=out,
                       formats=formats_of(formats), whole=full, echo=echo)
        return
    links, network_said = links_of(context, network, bandwidth, latency, parameters)
    make_plan(logs, [Target.parse(target) for target in targets], request, out=out, formats=formats_of(formats),
              skip_broken=skip_broken, links=links, notes=[network_said] if network_said else [],
              noise_scale=noise_scale, trials=trials, given=steps_of(steps) if steps else None, whole=full, echo=echo,
              batch_schedule=schedule_of(batch_schedule) if batch_schedule else None, times_from=times_from)


def links_of(context: click.Context, network: Sequence[str], bandwidth: float | None, latency: float | None,
             parameters: str | None) -> tuple[Links | None, str]:
    """(the network between nodes, what its files say); the command line goes before the machine's file. Raises
    UsageError if some options are missing, or contradict each other."""
    from ..analysis.size.sizes import parse_size
    from ..analysis.step_time import Links
    of_file = {name: context.get_parameter_source(name) == ParameterSource.DEFAULT_MAP
               for name in ("network", *OF_LINKS)}
    given = [name for name in OF_LINKS if context.params[name] is not None]
    if network and given and of_file["network"] == all(of_file[name] for name in given):
        raise UsageError(f"--network {network[0]}: gives bandwidth and latency; leave out "
                         f"{' and '.join(f'--{name}' for name in given)}")
    count = None if parameters is None else parse_size(parameters, "--parameters")
    if network and not (given and of_file["network"]):
        from ..exchange.network import network_of
        found = network_of(network)
        return Links(found.bandwidth, found.latency, count), (
            f"Network, from {listed(network)}: {number(found.bandwidth / 1e9)} GB/s and "
            f"{number(1e6 * found.latency)} us a hop between nodes, measured on up to {found.nodes} of them; the fit "
            f"misses the measured times by {percent(found.misses)}.")
    if not given and count is None:
        return None, ""
    if len(given) < len(OF_LINKS):
        missing = [f"--{name}" for name in OF_LINKS if name not in given]
        raise UsageError(f"the network needs --bandwidth and --latency together, or --network; {' and '.join(missing)} "
                         f"{'is' if len(missing) == 1 else 'are'} missing")
    return Links(1e9 * (bandwidth or 0), 1e-6 * (latency or 0), count), ""


def request_of(context: click.Context, asked) -> Request:
    from ..analysis.worker_plan import Request
    for name in ("price", "per_node", "budget", "local_batch", "global_batch", "max_local_batch", "knee", "power",
                 "memory", "noise_scale", "bandwidth", "latency"):
        value = context.params[name]
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: must be a number above 0")
    confidence_of(asked["confidence"])
    if asked["local_batch"] and asked["global_batch"]:
        raise UsageError(f"--local-batch {asked['local_batch']} and --global-batch {asked['global_batch']}: choose "
                         "one; --max-local-batch bounds the examples a worker holds at once")
    nodes, workers, per_node = asked.pop("nodes"), ",".join(asked["workers"]), asked["per_node"]
    if nodes is None:
        counts = workers_of(workers, per_node or 1)
    elif context.get_parameter_source("workers") != ParameterSource.DEFAULT:
        raise UsageError(f"--nodes {nodes} and --workers {workers}: choose one")
    elif not per_node:
        raise UsageError(f"--nodes {nodes}: --per-node says how many workers a node has")
    else:
        counts = tuple(per_node * count for count in workers_of(nodes, option="--nodes"))
    memory = asked["memory"] and asked["memory"] * 2 ** 30
    deadline, relaunch = (seconds_of(asked[name], f"--{name}") if asked[name] is not None else None
                          for name in ("deadline", "relaunch"))
    return Request(**{**asked, "workers": counts, "deadline": deadline, "memory": memory, "relaunch": relaunch})


def wanted_sizes(wanted, size_from) -> tuple[tuple[Size, ...], dict[str, float]]:
    from ..analysis.size.sizes import parse_size, sizes_of
    values = {}
    for text in wanted:
        name, equals, value = text.partition("=")
        if not equals or name.strip() in values:
            raise UsageError(f"--size {text!r}: is one NAME=VALUE for each size, such as parameters=7e9")
        values[name.strip()] = parse_size(value)
    sizes = {one.name: one for one in (*sizes_of(values), *sizes_of(size_from))}
    if missing := [name for name in sizes if name not in values]:
        raise UsageError(f"--size-from {missing[0]}: --size {missing[0]}=VALUE says what to plan for")
    return tuple(sizes.values()), values


def workers_of(text: str, per_node: int = 1, option: str = "--workers") -> tuple[int, ...]:
    """Worker counts of ``1,2,4`` or ``1-1024``: the ends and the doublings between, in whole nodes from one node on."""
    counts, doublings = set(), [2 ** power for power in range(24)]
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < first <= last <= 10_000_000:
            raise UsageError(f"{option} {text!r} is not a list of {option[2:]} such as 1,2,4,8 or 1-1024")
        counts |= {first, last, *(count for power in doublings for count in (min(power, per_node), per_node * power)
                                  if first < count < last)}
    return tuple(sorted(counts))


def seconds_of(text: str, option: str = "--deadline") -> float:
    """Seconds of ``90m``, ``2h``, ``1d`` or ``1h30m``; raises UsageError."""
    seconds = sum(float(number) * SECONDS[unit] for number, unit in TIME.findall(text))
    if not TIME.search(text) or TIME.sub("", text).strip():
        raise UsageError(f"{option} {text!r} is not a time with its unit, such as 90m, 2h, 1d or 1h30m")
    if not seconds > 0:
        raise UsageError(f"{option} {text!r}: is a time above 0, such as 90m, 2h, 1d or 1h30m")
    return seconds


def schedule_of(text: str) -> BatchSchedule:
    """The batches of ``[[0, 64], [2000, 128]]``; raises UsageError."""
    from ..plan.batch_schedule import BatchSchedule
    from ..plan.settings import Settings, parse_assignments
    try:
        schedule = Settings.build({}, parse_assignments([f"batch_schedule={text}"])).batch_schedule
    except UsageError as error:
        raise UsageError(f"--batch-schedule: {error}") from None
    if schedule.unit != "steps":
        raise UsageError(f"--batch-schedule {text}: a plan knows no {schedule.unit}; give the starts in steps")
    return BatchSchedule.of_pairs(schedule.amount)


def steps_of(text: str) -> StepsPoint:
    from ..analysis.intervals import Estimate
    from ..analysis.steps_curve import StepsPoint
    found = re.fullmatch(r"\s*(\d+)\s*@\s*(\d+)\s*", text)
    if not found or not int(found[1]) or not int(found[2]):
        raise UsageError(f"--steps {text!r} is not steps to target at a global batch, such as 860@32")
    steps = float(found[1])
    return StepsPoint(int(found[2]), Estimate(steps, steps, steps, 1))


if __name__ == "__main__":
    main()
