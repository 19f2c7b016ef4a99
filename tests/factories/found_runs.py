"""The files that other programs write of runs: four batches, three seeds each, whose steps to a target are known."""
import json
import sqlite3
import time

import numpy as np

TARGET, EVERY = "val/error<0.2", 4
RUNS = [(batch, seed) for batch in (4, 8, 16, 32) for seed in (1, 2, 3)]


def curve(batch, seed):
    """Rows of (step, loss, error), where the error is NaN between evaluations."""
    random = np.random.default_rng(100 * batch + seed)
    steps = np.arange(1, 25)
    errors = np.clip(0.9 * np.exp(-steps * np.sqrt(batch) / 12) + 0.02 * random.standard_normal(24), 0, 1)
    return [(int(step), float(2 * error), float(error) if step % EVERY == 0 else np.nan)
            for step, error in zip(steps, errors)]


def steps_to_target(batch, seed):
    return next((step for step, _, error in curve(batch, seed) if error < 0.2), None)


def csv_text(header, rows):
    return "\n".join([",".join(header), *(",".join("" if cell != cell else str(cell) for cell in row) for row in rows)]
                     ) + "\n"


def event_files(folder, batch, seed):
    write_events(folder, [(tag, step, value) for step, loss, error in curve(batch, seed)
                          for tag, value in (("train/loss", loss), ("val/error", error)) if value == value])


def write_events(folder, points):
    """Events of (tag, step, value), a second a step; those of Keras' callback as TensorFlow 2 writes them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer, start = EventFileWriter(str(folder)), time.time()
    for tag, step, value in points:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        summary = scalar_pb(tag, value) if tag.startswith(("epoch_", "evaluation_")) else summary
        writer.add_event(Event(wall_time=start + step, step=step, summary=summary))
    writer.close()


def lightning_csv(folder, batch, seed):
    rows = []
    for step, loss, error in curve(batch, seed):
        rows += [(0, step - 1, loss, np.nan)] + [(0, step - 1, np.nan, error)] * (error == error)
    (folder / "metrics.csv").write_text(csv_text(("epoch", "step", "train_loss", "val_error"), rows))
    (folder / "hparams.yaml").write_text("lr: 0.1\nnesterov: false\n")


def wandb_history(folder, batch, seed):
    rows = [(call, step, loss, error, 2.0 * step) for call, (step, loss, error) in enumerate(curve(batch, seed))]
    (folder / "history.csv").write_text(csv_text(
        ("_step", "trainer/global_step", "train/loss", "val/error", "_runtime"), rows))


def ray_progress(folder, batch, seed):
    (folder / "progress.csv").write_text(csv_text(("training_iteration", "val_error", "time_total_s", "trial_id"), [
        (step, error, 2.0 * step, "a1b2") for step, _, error in curve(batch, seed)]))
    (folder / "params.json").write_text(json.dumps({"batch_size": batch, "seed": seed, "lr": 0.1, "layers": [1]}))


def algoperf(folder, batch, seed):
    (folder / "measurements.csv").write_text(csv_text(
        ("global_step", "validation/error", "train/loss", "accumulated_submission_time", "score"),
        [(step, error, loss, 2.0 * step, 3.0 * step) for step, loss, error in curve(batch, seed) if error == error]))


def printed_lines(folder, batch, seed):
    lines = ["number of parameters: 0.10M"]
    for step, loss, error in curve(batch, seed):
        lines.append(f"iter {step - 1}: loss {loss!r}, time 12.50ms, mfu -100.00%")
        if error == error:
            lines.append(f"step {step}: train loss {loss!r}, val error {error!r}")
    (folder / "train.log").write_text("\n".join(lines) + "\n")


def json_lines(folder, batch, seed):
    lines = [{"config": {"batch_size": batch, "seed": seed, "lr": 0.1}, "host": "node-1"}]
    for step, loss, error in curve(batch, seed):
        lines.append({"current_steps": step, "loss": loss, "done": False, "elapsed_time": f"0:00:{2 * step:02d}"})
        if error == error:
            lines.append({"current_steps": step, "val": {"error": error}, "elapsed_time": f"0:00:{2 * step:02d}"})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"current_steps": 25, "lo')      # as a killed writer leaves it


def trainer_state(folder, batch, seed):
    history = []
    for step, loss, error in curve(batch, seed):
        history.append({"step": step, "epoch": step / 24, "loss": loss, "learning_rate": 0.1, "grad_norm": 1.0})
        if error == error:
            history.append({"step": step, "epoch": step / 24, "eval_error": error, "eval_runtime": 0.5,
                            "eval_samples_per_second": 100.0})
    history.append({"step": 24, "epoch": 1.0, "train_runtime": 51.0, "train_loss": 0.5})
    last = json.dumps({"log_history": history, "train_batch_size": batch, "max_steps": 24})
    for name, text in (("checkpoint-8", "{}"), ("checkpoint-24", last)):
        (folder / name).mkdir()
        (folder / name / "trainer_state.json").write_text(text)
    (folder / "checkpoint-24" / "training_args.bin").write_bytes(b"a pickle, which is not opened")


def mlflow_folder(folder, batch, seed):
    for name in ("params", "metrics/val"):
        (folder / name).mkdir(parents=True)
    (folder.parent / "meta.yaml").write_text("experiment_id: '7'\nname: points\n")
    (folder / "meta.yaml").write_text(f"run_name: swift-{batch}\nstart_time: 1000\nend_time: 99000\n")
    for name, value in {"batch_size": batch, "seed": seed, "lr": 0.1}.items():
        (folder / "params" / name).write_text(str(value))
    for at, name in ((1, "loss"), (2, "val/error")):
        (folder / "metrics" / name).write_text("".join(
            f"{1000 + 2000 * row[0]} {row[at]!r} {row[0]}\n" for row in curve(batch, seed) if row[at] == row[at]))


def mlflow_base(path):
    """The database of all runs."""
    base = sqlite3.connect(path)
    base.executescript("""
        CREATE TABLE experiments (experiment_id INTEGER, name TEXT);
        CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time INTEGER, experiment_id INTEGER, lifecycle_stage TEXT);
        CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
        CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan BOOLEAN);
        INSERT INTO experiments VALUES (7, 'points');
        INSERT INTO runs VALUES ('gone', 'gone', 0, 7, 'deleted');""")
    for batch, seed in RUNS:
        run = f"{batch}-{seed}"
        base.execute("INSERT INTO runs VALUES (?, ?, 1000, 7, 'active')", (run, run))
        for name, value in {"batch_size": batch, "seed": seed, "lr": 0.1}.items():
            base.execute("INSERT INTO params VALUES (?, ?, ?)", (name, str(value), run))
        for row in curve(batch, seed):
            for at, name in ((1, "loss"), (2, "val/error")):
                if row[at] == row[at]:
                    base.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, 0)",
                                 (name, row[at], 1000 + 2000 * row[0], run, row[0]))
    base.commit()
    base.close()


WRITERS = {"event files": event_files, "Lightning's CSV": lightning_csv, "W&B's history": wandb_history,
           "Ray's progress": ray_progress, "AlgoPerf": algoperf, "lines": printed_lines, "JSON lines": json_lines,
           "trainer_state.json": trainer_state, "MLflow's folder": mlflow_folder}


def write_runs(folder, how):
    """A folder of all runs, written by one of WRITERS or as MLflow's database; gives its path."""
    folder.mkdir()
    if how == "MLflow's database":
        mlflow_base(folder / "mlflow.db")
        return folder
    for batch, seed in RUNS:
        (folder / f"b{batch}-s{seed}").mkdir()
        WRITERS[how](folder / f"b{batch}-s{seed}", batch, seed)
    return folder
