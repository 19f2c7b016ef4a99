"""hvdscale-train whose rank 0 notes in the file $NOTES what its journal has taken: NUMBER SECONDS, or end SECONDS.

The seconds are those of time.monotonic, which all processes of a machine share.
"""
import os
import time

from hvdscale.cli.train import main
from hvdscale.journal import Journal

take_step, take_end = Journal.step, Journal.end


def note(what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{what} {time.monotonic()}\n")


def step(self, number, *given):
    take_step(self, number, *given)
    note(number)


def end(self, *given):
    take_end(self, *given)
    note("end")


if __name__ == "__main__":
    Journal.step, Journal.end = step, end
    main()
