"""Every reader under inputs that are cut, repeated, or have other bytes: an error in a line, or a log that is sound."""
import random
import time
from pathlib import Path

import pytest

from hvdscale.errors import HvdscaleError
from hvdscale.exchange.csv_tables import import_tables
from hvdscale.exchange.runs.into_log import import_runs
from hvdscale.log.check import check
from hvdscale.log.repair import repair
from hvdscale.plan.settings import read_toml
from tests.factories.found_runs import write_runs
from tests.factories.log_files import finished

INPUTS, SEED, MOST_SECONDS = 2000, 20261128, 10
TRAPS = b"1" * 400, b"nan", b"-1", b"1e999", b'"', b"\0", b"{" * 200, b" " * 2000, b"\xff"


def mutated(data, draw):
    """Bytes flipped, cut out, repeated, or replaced by others that readers may trip over."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 1, 4, 40, 400))
        how = draw.randrange(5)
        if how == 0 and at < len(data):
            data[at] = draw.randrange(256)
        elif how == 1:
            del data[at:at + length]
        elif how == 2:
            data[at:at] = data[at:at + length] * draw.choice((2, 50))
        elif how == 3:
            data[at:at + 1] = draw.choice(TRAPS)
        else:
            del data[at:]
    return bytes(data)


def made(folder, how, name):
    write_runs(folder / "made", how)
    return next(path for path in sorted((folder / "made").rglob(name))).read_bytes()


def tables(folder, name, data):
    (folder / "trials.csv").write_text("id,dataset,model,optimizer,global_batch,seed\n0,a,b,sgd,8,1\n1,a,b,sgd,8,2\n")
    (folder / "evaluations.csv").write_text("trial,step,val/error\n0,1,0.5\n1,1,0.5\n")
    (folder / name).write_bytes(data)
    import_tables(folder, folder.parent / "log.h5")


def runs(folder, name, data):
    (folder / name).write_bytes(data)
    import_runs([str(folder)], folder.parent / "log.h5")


def log(folder, name, data):
    (folder / "log.h5").write_bytes(data)
    repair(str(folder / "log.h5"))


READERS = {
    "CSV of runs": (runs, "b4.csv", lambda folder: made(folder, "W&B's history", "history.csv")),
    "JSON lines": (runs, "b4.jsonl", lambda folder: made(folder, "JSON lines", "metrics.jsonl")),
    "text": (runs, "b4.log", lambda folder: made(folder, "lines", "train.log")),
    "trainer_state.json": (runs, "trainer_state.json", lambda folder: made(folder, "trainer_state.json", "t*.json")),
    "event files": (runs, "events.out.tfevents.b4", lambda folder: made(folder, "event files", "events*")),
    "SQLite": (runs, "b4.db", lambda folder: made(folder, "MLflow's database", "*.db")),
    "tables": (tables, "evaluations.csv", lambda folder: b"trial,step,val/error\n0,1,0.5\n0,2,0.25\n1,1,0.5\n"),
    "TOML": (lambda folder, name, data: ((folder / name).write_bytes(data), read_toml(folder / name)), "a.toml",
             lambda folder: b'batch = {parameter = "n"}\n[tags]\n"val/error" = "val/error min"\n'),
    "a log": (log, "log.h5", lambda folder: Path(finished(folder / "a.h5")).read_bytes())}


@pytest.mark.slow                       # 2,000 inputs each: minutes
@pytest.mark.parametrize("reader", READERS)
def test_no_input_ends_in_a_traceback_or_is_waited_for(reader, tmp_path):
    fuzz(reader, tmp_path, INPUTS)


@pytest.mark.parametrize("reader", ["CSV of runs", "text", "tables"])
def test_some_inputs_end_in_a_line_or_a_sound_log(reader, tmp_path):
    fuzz(reader, tmp_path, 20)


def fuzz(reader, folder, inputs):
    """Reads that many mutations of a reader's own file, each seeded by its number."""
    read, name, whole = READERS[reader]
    data, place = whole(folder), folder / "b4"
    place.mkdir()
    for number in range(inputs):
        started, ended = time.process_time(), ""
        (folder / "log.h5").unlink(missing_ok=True)
        try:
            read(place, name, mutated(data, random.Random(SEED + number)))
            if (folder / "log.h5").exists():
                check(folder / "log.h5").close()
        except HvdscaleError as error:
            ended = str(error)
        assert time.process_time() - started < MOST_SECONDS, f"{reader}: input {number}: {ended}"
