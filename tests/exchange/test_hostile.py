"""Every reader under inputs that are cut, repeated, or have other bytes: an error in a line, or a log that is sound.
Of logs see tests.log.test_repair."""
import json
import random
import time

import pytest

from hvdscale.cli.plan import machine_of
from hvdscale.errors import HvdscaleError
from hvdscale.exchange.archive.read import import_archive
from hvdscale.exchange.benchmarks.mllog import import_mllog
from hvdscale.exchange.benchmarks.mlperf_rcp import import_rcp
from hvdscale.exchange.csv_tables import import_tables
from hvdscale.exchange.network import network_of
from hvdscale.exchange.runs.formats import read_runs
from hvdscale.exchange.runs.guessing import guess
from hvdscale.exchange.runs.into_log import import_runs, settle, write
from hvdscale.exchange.runs.mapping import read_lines, read_mapping
from hvdscale.log.check import check
from hvdscale.plan.settings import read_toml
from hvdscale.sweep.file import read_sweep
from tests.cli.test_kills import SWEEP
from tests.exchange.benchmarks.test_mllog import submission
from tests.exchange.benchmarks.test_mlperf_rcp import point
from tests.exchange.test_archive import MEASURED, PLACE, metadata, small
from tests.exchange.test_network import PING_PONG, nccl
from tests.factories.found_runs import write_runs

INPUTS, SEED, MOST_SECONDS = 2000, 20261128, 10
TRAPS = b"1" * 400, b"nan", b"-1", b"1e999", b'"', b"\0", b"{" * 200, b" " * 2000, b"\xff", b"{[1]: 2}", \
    b"1.2.3", b"inf", b"9223372036854775808"


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
    if "/" in name or name == "config.yaml":
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "meta.yaml").write_text("run_name: a\nstart_time: 1000\n")
        (folder / "m.csv").write_text("step,val_loss\n1,1.0\n2,0.5\n")
    (folder / name).write_bytes(data)
    import_runs([str(folder)], folder.parent / "log.h5")


def mapped(folder, name, data):
    (folder / "m.csv").write_text("step,val_loss,batch_size\n1,1.0,8\n2,0.5,8\n")
    (folder / name).write_bytes(data)
    runs = read_runs([str(folder / "m.csv")], read_lines(str(folder / name)))
    mapping = read_mapping(str(folder / name), guess(runs), runs)
    write(settle(runs, mapping), folder.parent / "log.h5", mapping, ["m.csv"])


def written(read):
    """A reader of one file."""
    def from_file(folder, name, data):
        (folder / name).write_bytes(data)
        read(str(folder / name), folder.parent / "log.h5")
    return from_file


def archive(folder, name, data):
    if not (folder / PLACE).exists():
        small(folder)
    (folder / PLACE / "1" / name).write_bytes(data)
    import_archive(str(folder), folder.parent / "log.h5")


READERS = {
    "CSV of runs": (runs, "b4.csv", lambda folder: made(folder, "W&B's history", "history.csv")),
    "JSON lines": (runs, "b4.jsonl", lambda folder: made(folder, "JSON lines", "metrics.jsonl")),
    "text": (runs, "b4.log", lambda folder: made(folder, "lines", "train.log")),
    "trainer_state.json": (runs, "trainer_state.json", lambda folder: made(folder, "trainer_state.json", "t*.json")),
    "event files": (runs, "events.out.tfevents.b4", lambda folder: made(folder, "event files", "events*")),
    "SQLite": (runs, "b4.db", lambda folder: made(folder, "MLflow's database", "*.db")),
    "MLflow's folder": (runs, "metrics/val_loss", lambda folder: b"1000 1.0 1\n2000 0.5 2\n"),
    "settings": (runs, "config.yaml", lambda folder: b"lr: 0.1\nbatch_size:\n  value: 8\nworld_size: 2\n"),
    "--map": (mapped, "m.toml", lambda folder:
              b'train_examples = 99\nbatch = 8\n[tags]\nval_loss = "val/error min"\n'),
    "MLPerf's log": (written(import_mllog), "result_0.txt", lambda folder: submission().encode()),
    "reference points": (written(import_rcp), "r.json", lambda folder: json.dumps(
        {"a": point(1000, [40, 41, 41]), "b": point(64, [30, 30])}).encode()),
    "measurements": (archive, "measurements.csv", lambda folder: MEASURED.encode()),
    "metadata": (archive, "metadata.json", lambda folder: json.dumps(metadata(1)).encode()),
    "nccl-tests": (written(lambda path, _: network_of([path])), "n.txt", lambda folder: nccl(4).encode()),
    "OSU": (written(lambda path, _: network_of([path])), "n.txt", lambda folder: PING_PONG.encode()),
    "machine": (written(lambda path, _: machine_of(path)), "m.json", lambda folder: b'{"per_node": 8, "price": 32.5}'),
    "sweep": (written(lambda path, _: read_sweep(path)), "s.toml", lambda folder: SWEEP.encode()),
    "tables": (tables, "evaluations.csv", lambda folder: b"trial,step,val/error\n0,1,0.5\n0,2,0.25\n1,1,0.5\n"),
    "TOML": (lambda folder, name, data: ((folder / name).write_bytes(data), read_toml(folder / name)), "a.toml",
             lambda folder: b'batch = {parameter = "n"}\n[tags]\n"val/error" = "val/error min"\n')}


@pytest.mark.slow                       # 2,000 inputs each: minutes
@pytest.mark.parametrize("reader", READERS)
def test_no_input_ends_in_a_traceback_or_is_waited_for(reader, tmp_path):
    fuzz(reader, tmp_path, INPUTS)


@pytest.mark.parametrize("reader", READERS)
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
        except HvdscaleError as error:
            ended = str(error)
            assert not (folder / "log.h5").exists(), f"{reader}: input {number}: {ended}"
        if (folder / "log.h5").exists() and not ended:
            check(folder / "log.h5").close()
        assert time.process_time() - started < MOST_SECONDS, f"{reader}: input {number}: {ended}"
