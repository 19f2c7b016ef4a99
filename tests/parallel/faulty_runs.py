"""Runs of the toy workload one after another in one launch, in each of which one rank comes to grief.

given.json has FAULT, as toy_command knows it, and the settings of each run. Every rank writes of each its exit code,
what it printed, and its error.
"""
import contextlib
import io
import json
import sys
from pathlib import Path

import hvdscale.workloads
from hvdscale.cli.train import _run
from hvdscale.errors import HvdscaleError
from hvdscale.system import hangup
from hvdscale.workers.transport import form
from tests.parallel import toy_command

SETTINGS = {"steps": 200, "eval_every": 5, "stall_seconds": 60}


def ended(fault, settings, workers):
    """How a run under a fault ended for this rank."""
    toy_command.plan(fault)
    hangup._stopped.clear()                     # by the run before
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            code, error = _run("toy/net", [{}, {**SETTINGS, **settings}], False, workers), ""
        except HvdscaleError as raised:
            code, error = raised.exit_code, str(raised)
    return {"code": code, "error": error, "printed": printed.getvalue()}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    hvdscale.workloads.DATASETS["toy"] = toy_command
    workers = form(SETTINGS["stall_seconds"])
    found = [ended(*given, workers) for given in json.loads((out / "given.json").read_text())]
    (out / f"rank{workers.rank}.json").write_text(json.dumps(found))
    workers.leave()
