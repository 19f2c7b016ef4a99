"""One rank of an examined script: its listeners, and the record that it leaves."""

import sys
from typing import NoReturn

from ...watch.rank import Rank
from .listen.batches import Batches
from .listen.session import Session
from .listen.updates import Updates
from .record import Record


def main(of: type[Session] = Session) -> NoReturn:
    """Run the script as this rank, and end with its record; ``of``: what keeps it."""
    sys.dont_write_bytecode = True
    rank = Rank()
    record = Record(rank.process.rank, rank.process.size)
    session = of(record, rank.place, rank.task, rank.leave)
    batches = Batches(session)
    session.updates = Updates(session, batches)
    if of is Session:
        session.at_end = batches.hold
    rank.run((batches, session.updates, session), session.end, is_cut=lambda: record.was_cut)


if __name__ == "__main__":
    main()
