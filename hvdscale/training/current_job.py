"""The job as it is now, without a run: what hvdscale-scale and hvdscale-tune hold finished runs against.

    hvdscale.training.current_job job:workload '{"train_subset": 500}'    its last line is JSON
"""

import json
import sys
from collections.abc import Mapping

from ..data.generators import OwnGenerators
from ..errors import DataError, HvdscaleError, StoppedError
from ..workload import Data, Workload, build_model
from ..workloads import find
from .job import identify
from .prepare import read_data, settings_of


def current_job(name: str, workload: Workload, data: Data | None, model_args: Mapping) -> dict:
    """The job of a workload with its data, by default arguments but for these; None, or a model that fails: unknown."""
    model = None
    if data is not None:
        try:
            with OwnGenerators():
                model = build_model(workload, {**data.model_args, **model_args})
        except StoppedError:
            raise
        except Exception:                       # of the user's code; a run says what is wrong
            pass
    return identify(name, workload, data, model)


def main(name: str, keys: str) -> None:
    """Print the job and notes; one line on stderr and an error's exit code if there is no such workload."""
    notes = []
    try:
        workload = find(name)
        settings, data = settings_of(workload, [json.loads(keys)]), None
        try:
            data = read_data(workload, settings)
        except DataError as missing:
            notes.append(f"the data cannot be read here, so whether it changed is unknown: {missing}")
        job = current_job(name, workload, data, settings.model_args)
    except HvdscaleError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    print("\n" + json.dumps({"job": job, "notes": notes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
