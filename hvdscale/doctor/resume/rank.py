"""One rank of a script that is stopped, or started again: the listeners of doctor/script, and those of checkpoints."""
from functools import partial

from ..script import rank
from .listen import Files, ResumeSession, Starts

main = partial(rank.main, ResumeSession, (Starts, Files))

if __name__ == "__main__":
    main()
