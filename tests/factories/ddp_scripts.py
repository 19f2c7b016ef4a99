"""Training scripts with DistributedDataParallel: honest ones, and the same with a fault planted: those of
ddp_scripts.toml."""
from pathlib import Path

from hvdscale.plan.settings import tomllib
from tests.factories import resume_scripts

SCRIPTS = tomllib.loads(Path(__file__).with_name("ddp_scripts.toml").read_text())


def script(name, scripts=SCRIPTS):
    """The text of a script; raises KeyError for an unknown name."""
    made = scripts[name]
    if "text" in made:
        return made["text"]
    return resume_scripts.changed(script(made.get("of", "honest"), scripts), made["change"])


def changed(changes, of="honest"):
    """A script with parts of it replaced, each of which it has once."""
    text = script(of)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
