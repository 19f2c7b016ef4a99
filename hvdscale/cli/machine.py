"""A machine as hvdscale-plan is told of it: a file of options, and the network between its nodes."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..formatting.numbers import listed, number, percent
from ..plan.values import check_value, none_of
from ..system.inputs import input_text

if TYPE_CHECKING:               # slow imports, which --help can do without
    from ..analysis.step_time import Links
    from ..exchange.network import Network

NUMBERS = ("per_node", "price", "memory", "power", "bandwidth", "latency")
OF_LINKS = ("bandwidth", "latency")


def read_machine(context: click.Context, _: click.Parameter, path: str | None) -> None:
    """Makes the keys of a machine's file the defaults of the options of their names."""
    try:
        context.default_map = None if path is None else machine_of(path)
    except UsageError as error:                     # click has not invoked the command yet, which would end with it
        raise click.UsageError(str(error)) from None


def machine_of(path: str) -> dict[str, Any]:
    """Options by name, of a machine's file; raises UsageError naming a key that is none, or its value."""
    try:
        values = json.loads(input_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--machine {path}: is no file of JSON that can be read: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"--machine {path}: is no JSON object, such as {{\"per_node\": 8, \"price\": 32}}")
    for key, value in values.items():
        if key == "network":
            values[key] = _beside(path, value)
        elif key not in NUMBERS:
            raise UsageError(f"--machine {path}: {none_of(key, [*NUMBERS, 'network'])}")
        else:
            check_value(f"--machine {path}: {key}", value, int if key == "per_node" else float)
    return values


def _beside(path: str, named: Any) -> list[str]:
    """The paths of one file or several that the machine's file names, in its folder."""
    files = [named] if isinstance(named, str) else named
    if not isinstance(files, list) or not files or not all(isinstance(one, str) for one in files):
        raise UsageError(f"--machine {path}: network = {named!r} is not a file or a list of files")
    return [os.path.join(os.path.dirname(path), one) for one in files]


def links_of(context: click.Context, network: Sequence[str], bandwidth: float | None, latency: float | None,
             parameters: str | None) -> tuple[Links | None, str]:
    """(the network between nodes, what its files say); the command line goes before the machine's file.

    Raises UsageError if some options are missing, or contradict each other.
    """
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
        return Links(found.bandwidth, found.latency, count), describe_network(found, network)
    if not given and count is None:
        return None, ""
    if len(given) < len(OF_LINKS):
        missing = [f"--{name}" for name in OF_LINKS if name not in given]
        raise UsageError(f"the network needs --bandwidth and --latency together, or --network; {' and '.join(missing)} "
                         f"{'is' if len(missing) == 1 else 'are'} missing")
    return Links(1e9 * (bandwidth or 0), 1e-6 * (latency or 0), count), ""


def describe_network(network: Network, files: Sequence[str]) -> str:
    """What was read of the network, in a sentence."""
    return (f"Network, from {listed(list(files))}: {number(network.bandwidth / 1e9)} GB/s and "
            f"{number(1e6 * network.latency)} us a hop between nodes, measured on up to {network.nodes} of them; the "
            f"fit misses the measured times by {percent(network.misses)}.")
