"""What becomes of jobs when something goes wrong: each fault of the table, once."""
import pytest

from tests.conftest import lacks, launcher_command
from tests.parallel import fault_table, node_faults


@pytest.mark.slow
@pytest.mark.parametrize("name", [*fault_table.FAULTS, *node_faults.FAULTS])
def test_a_job_keeps_what_is_promised_under_a_fault(name):
    launcher = name.rpartition(" ")[2]
    launcher_command({"srun": "mpirun", "elastic": "horovodrun"}.get(launcher, launcher), 1)
    if name in node_faults.FAULTS and node_faults.lacking():
        lacks("slurm-net", f"needs {node_faults.lacking()}")
    outcomes, _ = (node_faults if name in node_faults.FAULTS else fault_table).tried(name, 1)
    assert not [outcome for outcome in outcomes if outcome.startswith("BROKEN")], outcomes
