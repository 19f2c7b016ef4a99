"""Processes that share the draws of one study in a folder, for tests that kill them."""
import multiprocessing
import os
import random
import time

from hvdscale.sweep.ledger import DrawResult, Ledger, Owner

STUDY = "sgd-b32"


def start(*given):
    """A process in ``work``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=work, args=given, daemon=True)
    process.start()
    return process


def work(out, draws, seconds, seed):
    """Runs draws until all are finished: each takes up to ``seconds``, and says so in OUT/notes."""
    ledger, rng = Ledger(out), random.Random(seed)
    owner = Owner.take(out)
    while len(finished := ledger.results(STUDY)) < draws:
        for number in (n for n in range(draws) if n not in finished):
            attempt = ledger.claim(STUDY, number, owner)
            if attempt is not None:
                note(out, number, f"begun by {os.getpid()}")
                time.sleep(rng.uniform(0, seconds))
                note(out, number, f"ended by {os.getpid()}")
                if rng.random() < 0.2:
                    ledger.release(STUDY, number, attempt)
                else:
                    made = ledger.record(STUDY, DrawResult(number, "met", owner=owner.name))
                    note(out, number, "recorded" if made else "refused")
            elif ledger.lost(STUDY, number):
                ledger.record(STUDY, DrawResult(number, "lost", owner=owner.name))
        time.sleep(0.003)
    owner.release()


def note(out, number, what):
    with open(os.path.join(out, "notes"), "a") as notes:
        notes.write(f"{number} {what}\n")


def ran_at_once(said):
    """The draws that one process began before another one ended them; a killed one ends nothing."""
    found = set()
    for number, whats in said.items():
        begun = []
        for what, _, process in (one.partition(" by ") for one in whats):
            if what == "begun":
                begun.append(process)
            elif what == "ended":
                found |= {number} if begun[-1] != process else set()
    return found


def notes(out):
    """What was noted of each draw, in order: {number: [what, ...]}."""
    said = {}
    with open(os.path.join(out, "notes")) as file:
        for line in file:
            number, what = line.rstrip().split(" ", 1)
            said.setdefault(int(number), []).append(what)
    return said
