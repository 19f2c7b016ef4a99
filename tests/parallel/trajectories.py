"""Every rank writes the losses and final parameters of the toy workload under each configuration it is given."""
import json
import sys
from pathlib import Path

import torch

from hvdscale.workers.transport import form
from tests.parallel.toy import trajectory

if __name__ == "__main__":
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    workers = form(60)
    runs = [trajectory(workers, **configuration) for configuration in json.loads((out / "given.json").read_text())]
    (out / f"rank{workers.rank}.json").write_text(json.dumps(runs))
    workers.leave()
