"""What becomes of Slurm jobs whose nodes, daemons or controller fail: each fault of the table, once."""
import pytest

from tests.conftest import lacks, launcher_command
from tests.parallel.node_faults import FAULTS, lacking, tried


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_job_goes_on_after_a_fault_of_a_node(name):
    launcher_command("horovodrun" if name.endswith("elastic") else "mpirun", 1)
    if lacking():
        lacks("slurm-net", f"needs {lacking()}")
    outcomes, _ = tried(name, 1)
    assert not [outcome for outcome in outcomes if outcome.startswith("BROKEN")], outcomes
