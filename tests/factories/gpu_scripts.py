"""Training scripts for GPUs, as people write them, and the same with a fault: those of gpu_scripts.toml."""
from pathlib import Path

from hvdscale.plan.settings import tomllib
from tests.factories import ddp_scripts

SCRIPTS = tomllib.loads(Path(__file__).with_name("gpu_scripts.toml").read_text())
RIGHT = [name for name, made in SCRIPTS.items() if "text" in made]
CHANGES = [name for name in SCRIPTS if name not in RIGHT]
SPAWNING = SCRIPTS["spawning"]["text"]


def script(name):
    """The text of a script, and its words; raises KeyError for an unknown name."""
    made = SCRIPTS[name]
    return ddp_scripts.script(name, SCRIPTS), SCRIPTS[made.get("of", name)]["words"]
