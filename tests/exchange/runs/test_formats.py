"""Runs of other programs, each format through the command: the log says what the runs say."""
import numpy as np
import pytest

from hvdscale.exchange.runs.formats import read_runs
from hvdscale.log.check import check
from hvdscale.log.schema import Status
from tests.exchange.test_tables_and_rcp import call
from tests.factories import found_runs
from tests.factories.found_runs import RUNS, csv_text, curve, steps_to_target, write_events, write_runs

# seconds until step 24
SECONDS = {"event files": 24, "Lightning's CSV": None, "W&B's history": 48, "Ray's progress": 48, "AlgoPerf": 48,
           "lines": 0.3, "JSON lines": 48, "trainer_state.json": 48, "MLflow's folder": 48, "MLflow's database": 48}


def steps_of(log):
    """Steps to the target by batch and seed, as the log has them."""
    found = {}
    for row, trial in enumerate(log.trials["id"].tolist()):
        step, error = (log.evaluations.of_trial(name, trial) for name in ("step", "val/error"))
        met = step[error < 0.2]
        found[log.trials["global_batch"][row], log.trials["seed"][row]] = int(met[0]) if len(met) else None
    return found


@pytest.mark.parametrize("how", SECONDS)
def test_runs_of_each_format_become_the_trials_that_they_were(how, tmp_path):
    if how == "event files":
        pytest.importorskip("tensorboard")
    source = write_runs(tmp_path / "made", how)
    code, said = call("import", source, tmp_path / "log.h5")
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert steps_of(log) == {run: steps_to_target(*run) for run in RUNS}
        rows = curve(log.trials["global_batch"][0], log.trials["seed"][0])
        errors = log.evaluations.of_trial("val/error", 0)
        np.testing.assert_allclose(errors[errors == errors], [row[2] for row in rows if row[2] == row[2]], rtol=1e-6)
        assert log.evaluations.specs["val/error"].better == "smaller"
        last = log.evaluations.of_trial("train_seconds", 0)[-1]
        assert np.isnan(last) if SECONDS[how] is None else last == pytest.approx(SECONDS[how], abs=1.1)
        steps, losses = (log.steps.of_trial(name, 0) for name in ("step", "loss"))
        if how != "lines":                      # whose loss is that of the step after
            np.testing.assert_allclose(losses, [rows[step - 1][1] for step in steps], rtol=1e-6)


# a file's name, its text, and (step, validation metric) of its evaluations
PRINTED = {
    "Megatron-LM": ("b.log", """  global_batch_size ............................... 64
 [2025-03-01 10:00:01] iteration        5/     500 | consumed samples:          320 | elapsed time per iteration (ms): \
250.0 | learning rate: 1.5E-04 | global batch size:    64 | lm loss: 1.05E+01 | number of nan iterations:   0 |
 validation loss at iteration 10 | lm loss value: 8.50E+00 | lm loss PPL: 4.9E+03 |
""", [(10, 8.5)]),
    "torchtitan": ("gb64.log", """[titan] 10:00:03,000 - root - INFO - step:  5  loss:  8.1000  memory: 10.10GiB(12.80%)
[titan] 10:00:09,000 - root - INFO - validate step: 10  loss:  8.5000  memory: 10GiB(12.80%)  tps: 12,340
""", [(10, 8.5)]),
    "fairseq": ("fair.log", """2025 | INFO | train_inner | epoch 001:  5 / 9 loss=9.5, bsz=64, num_updates=5, lr=0.0003
2025 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.5 | bsz 64 | num_updates 10 | best_loss 8.5
""", [(10, 8.5)]),
    "fairseq's JSON": ("b64.log", '2025 | INFO | train | {"epoch": 1, "train_loss": "9.5", "train_num_updates": "5"}\n'
                       '2025 | INFO | valid | {"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "10"}\n',
                       [(10, 8.5)]),
    "modded-nanogpt": ("b64.txt", "step:0/20 val_loss:10.8 train_time:0ms step_avg:nanms\n"
                       "step:10/20 val_loss:8.5 train_time:1500ms step_avg:150.1ms\n", [(0, 10.8), (10, 8.5)]),
    "nanochat": ("b64.log", "step 00005/00020 (25.00%) | loss: 9.5 | dt: 120.00ms | tok/sec: 500,000 | time: 1.20m\n"
                 "Step 00010 | Validation bpb: 8.5\n", [(10, 8.5)]),
    "OLMo": ("b64.log", "2026-01-01\tINFO\t[step=10/20,epoch=0]\n    train/CrossEntropyLoss=8.5\n    lr=0.1\nSaved\n",
             [(10, 8.5)]),
    "Composer": ("b64.log", "[batch=5/20]:\n\t Train loss/train/total: 9.5000\n[batch=10/20]:\n\t Train "
                 "loss/train/total: 9.4000\n[Eval batch=1/3] Eval on eval data\n[Eval batch=3/3] Eval on eval data:\n"
                 "\t Eval metrics/eval/LanguageCrossEntropy: 8.5000\n", [(10, 8.5)]),
    "build-nanogpt": ("b64.txt", "0 val 10.9\n0 train 10.8\n10 val 8.5\n10 hella 0.25\n", [(0, 10.9), (10, 8.5)]),
    "TensorFlow's estimator": ("b64.log", "INFO:tensorflow:loss = 9.5, step = 5 (1.2 sec)\nINFO:tensorflow:Saving dict "
                               "for global step 10: accuracy = 0.5, global_step = 10, loss = 8.5\n", [(10, 8.5)]),
    "Marian": ("b64.log", "[2024] Ep. 1 : Up. 5 : Sen. 320 : Cost 9.5 : Time 5.1s\n"
               "[2024] [valid] Ep. 1 : Up. 10 : cross-entropy : 8.5 : new best\n", [(10, 8.5)]),
    "MXNet": ("b64.log", "INFO:root:[Epoch 0] training: accuracy=0.1\nINFO:root:[Epoch 0] validation: err-top1=8.5\n",
              [(10, 8.5)]),
    "the word language model": ("b64.log", "| epoch   1 |     5/   10 batches | lr 20.00 | ms/batch 2000 | loss  9.5\n"
                                "| end of epoch   1 | time: 600.00s | valid loss  8.5\n", [(10, 8.5)]),
    "a late epoch alone": ("b64.log", "".join(f"INFO:root:Epoch [6/6], Step [{at}/10], Loss: 9.5\n" for at in (1, 5, 9))
                           + "Validation Loss: 8.5\nINFO:root:Saved best model at epoch 6 with val loss 8.5\n",
                           [(60, 8.5)]),
    "a block below a headline": ("b64.log", "step 5, loss 9.5, lr 0.1\n===== Evaluation =====\nacc: 8.4\nstep 10, loss "
                                 "9.4, lr 0.1\n===== Evaluation =====\nacc: 8.5\n", [(5, 8.4), (10, 8.5)]),
    "a block that names its step": ("b64.log", "".join(
        f"06/01/2020 10:00 - INFO -   ***** Eval results {at} *****\n06/01/2020 10:00 - INFO -   acc = {value}\n"
        f"06/01/2020 10:00 - INFO -   global_step = {at}\n" for at, value in ((5, 8.4), (10, 8.5))),
                                    [(5, 8.4), (10, 8.5)]),
    "a loss of training in a block": ("b64.log", "***** Eval results *****\n  eval_loss = 8.5\n  global_step = 10\n"
                                      "  loss = 0.4\n", [(10, 8.5)]),
    "CLU": ("b64.log", "I0620 12:00:00.1 140 logging_writer.py:48] [5] train_loss=9.5\nI0620 12:00:00.1 140 "
            "logging_writer.py:48] [10] eval_loss=8.5\n", [(10, 8.5)]),
    "ESPnet": ("b64.log", "(trainer:338) INFO: 1epoch results: [train] loss=9.5, [valid] loss=8.5, total_count=9\n",
               [(10, 8.5)]),
    "sections of splits": ("b64.log", "Epoch 1 | train: loss 9.5 acc 0.1 | valid: loss 8.5 acc 0.2\n", [(10, 8.5)]),
    "Swin": ("b64.log", "(main.py 192): INFO Train: [0/6][5/10]\tlr 0.1\tloss 9.5 (9.5)\n(main.py 236): INFO Test: "
             "[0/98]\tLoss 6.7 (6.7)\n(main.py 244): INFO  * Acc@1 8.500 Acc@5 50.3\n", [(10, 8.5)]),
    "PaddleDetection": ("b64.log", "INFO: Epoch: [0] [  5/10] loss: 9.5\nINFO: Eval iter: 0\n Average Precision  (AP) "
                        "@[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 8.5\n", [(10, 8.5)]),
    "pycls": ("b64.log", '[t.py: 8]: PyTorch 1.8\n' + "".join(
        '[m.py: 2]: json_stats: {"_type": "%s", "epoch": "%d/2", %s}\n' % row for epoch in (1, 2) for row in (
            ("train_iter", epoch, '"iter": "9/10", "loss": 9.5'), ("train_iter", epoch, '"iter": "10/10", "loss": 9'),
            ("test_epoch", epoch, '"top1_err": 8.5'))), [(10, 8.5), (20, 8.5)]),
    "MMCV": ("b64.json", "".join('{"mode": "train", "epoch": %d, "iter": %d, "loss": 9.5}\n' % (epoch, at) + (
        '{"mode": "val", "epoch": %d, "iter": 79, "mAP": 8.5}\n' % epoch if at == 10 else "")
        for epoch in (1, 2) for at in (5, 10)), [(10, 8.5), (20, 8.5)]),
    "MXNet's module": ("b64.log", "Epoch[0] Batch [5]\tTrain-Acc=0.5\nUpdate[9]: Change learning rate to 1e-3\n"
                       "Epoch[0] Validation-loss=8.5\n", [(10, 8.5)]),
    "icefall": ("b64.log", "".join(
        f"Epoch 1, batch {at}, loss[loss=9, over 7.0]\nEpoch 1, validation: loss={value}\n"
        for at, value in ((5, 8.5), (9, 8.4))), [(5, 8.5), (9, 8.4)]),
    "fastai": ("b64.csv", "epoch,train_loss,valid_loss,accuracy\n0,9.5,9.5,8.4\n1,9.4,9.4,8.5\n",
               [(10, 8.4), (20, 8.5)]),
    "steps of an epoch from 0": ("b64.log", "".join(
        f"Epoch {at} | Step 5/10 | Loss: 9\nEpoch {at} | Step 9/10 | Loss: 9\nEvaluation results:\n Loss: 8.5\n"
        for at in (0, 1)), [(10, 8.5), (20, 8.5)]),
    "rows that name their split": ("b64.jsonl", "".join(
        '{"split": "%s", "step": %d, "loss": %s}\n' % row for row in (
            ("train", 5, 9.6), ("val", 5, 8.6), ("train", 10, 9.5), ("val", 10, 8.5))), [(5, 8.6), (10, 8.5)]),
    "a column of splits": ("b64.csv", "epoch,phase,loss\n1,train,9.5\n1,val,8.5\n", [(10, 8.5)]),
    "Keras' history": ("b64.json", '{"loss": [9.5, 9.4], "val_loss": [8.6, 8.5]}', [(10, 8.6), (20, 8.5)]),
    "Sacred": ("b64.json", '{"train.loss": {"steps": [5, 10], "values": [9, 8]}, "val.loss": {"steps": [10], "values": '
               '[8.5]}}', [(10, 8.5)]),
    "Chainer": ("b64.json", '[\n  {"iteration": 5, "main/loss": 9.5},\n  {"iteration": 10, "validation/main/loss": '
                '8.5}\n]', [(10, 8.5)]),
    "WeNet": ("b64.log", "DEBUG TRAIN Batch 0/0 loss 9.5 lr 0.1\nINFO Epoch 0 CV info cv_loss 8.5\n", [(10, 8.5)]),
    "MaxText": ("b64.log", "".join(f"completed step: {at}, seconds: 1.1, loss: 9.5\neval metrics after step: {at}, "
                                   f"loss={8 + at / 18}\n" for at in (4, 9)), [(5, 8 + 4 / 18), (10, 8.5)]),
    "PyTorch's MNIST": ("b64.txt", "Train Epoch: 1 [0/60000 (0%)]\tLoss: 9.5\n\nTest set: Average loss: 8.5, "
                        "Accuracy: 9904/10000 (99%)\n", [(10, 8.5)]),
    "torch's ImageNet": ("b64.log", "Epoch: [0][ 1/10]\tTime 5.2 ( 5.2)\tLoss 9.5e+00 (9.5e+00)\tAcc@1  0.0 (  0.0)\n"
                         "Test: [ 1/2]\tLoss 7.0e+00 (7.0e+00)\tAcc@1   6.5 (  6.5)\n *   Acc@1 8.500 Acc@5 30.1\n",
                         [(10, 8.5)]),
    "Keras' output": ("b64.log", "Epoch 1/2\n500/500 - 3s 5ms/step - loss: 9.5 - val_loss: 8.5\n", [(10, 8.5)]),
    "Trainer's output": ("b64.log", "Loading\n{'loss': 9.5, 'learning_rate': 1e-4, 'epoch': 0.5}\n"
                         "{'eval_loss': 8.5, 'eval_runtime': 1.2, 'epoch': 1.0}\n", [(10, 8.5)]),
    "Trainer's output behind its progress": (
        "b64.log", "{'loss': 9.5, 'epoch': 0.5}\n 50%|#  | 10/20 [00:01<00:01, 9it/s]{'eval_loss': 8.5, 'epoch': 1.0}\n"
        "{'loss': 9.4, 'epoch': 1.5}\n{'train_runtime': 2.5, 'train_loss': 9.45, 'epoch': 2.0}\n", [(10, 8.5)]),
    "MMEngine": ("b64.json", "".join('{"loss": 9.5, "epoch": %d, "iter": %d, "step": %d}\n' % (1 + (at > 10), at, at)
                                     for at in (10, 11)) + '{"val/AP": 8.5, "step": 1}\n', [(10, 8.5)]),
    "MMEngine, every 5 steps": ("b64.json", "".join(
        '{"loss": 9.5, "epoch": %d, "iter": %d, "step": %d}\n' % (epoch, at, at)
        for epoch, at in ((1, 5), (1, 10), (2, 17), (2, 22), (3, 29))) + '{"val/AP": 8.5, "step": 1}\n', [(12, 8.5)]),
    "Keras' training.log": ("b64.log", "epoch,loss,val_loss\n0,9.5,8.5\n", [(10, 8.5)]),
    "tags of torch's tutorials": ("b64.csv", "step,Loss/train,Loss/test,Accuracy/test\n10,9.5,8.5,0.9\n", [(10, 8.5)]),
    "Composer's tags": ("b64.csv", "Step,loss/train/total,metrics/eval/Perplexity\n10,9.5,8.5\n", [(10, 8.5)]),
    "Ultralytics": ("b64.csv", "     epoch,     train/box_loss,   val/box_loss\n   1,    9.5,    8.5\n", [(10, 8.5)])}


@pytest.mark.parametrize("of", PRINTED)
def test_what_trainers_print_is_read(of, tmp_path):
    name, text, expected = PRINTED[of]
    (tmp_path / name).write_text(text)
    code, said = call("import", tmp_path / name, tmp_path / "log.h5", "--set-size", 640)
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [64]
        found = [[row for row in zip(log.evaluations["step"].tolist(), log.evaluations[column].tolist())
                  if row[1] == row[1]] for column in log.evaluations.columns if "/" in column]
        assert expected in found
        seconds = {"modded-nanogpt": 1.5, "Megatron-LM": 2.5, "nanochat": 1.2, "the word language model": 20}.get(of)
        assert seconds is None or log.evaluations["train_seconds"][-1] == pytest.approx(seconds)


# a folder's files, what its import is told, and its global batch, workers (0: unknown), steps and times of evaluations
MEANT = {
    "timm's workers load data": ({"args.yaml": "batch_size: 32\nworkers: 8\nmodel: a\nopt: sgd\n",
                                  "summary.csv": "epoch,train_loss,eval_top1\n0,2.0,40\n1,1.5,50\n"},
                                 ("--set-size", 320), (32, 0, [10, 20], None)),
    "timm on two workers": ({"args.yaml": "batch_size: 32\nworkers: 8\nmodel: a\nopt: sgd\n",
                             "summary.csv": "epoch,train_loss,eval_top1\n0,2.0,40\n1,1.5,50\n"},
                            ("--set-size", 640, "--workers", 2), (64, 2, [10, 20], None)),
    "devices times nodes": ({"hparams.yaml": "batch_size: 8\ndevices: 4\nnum_nodes: 2\n",
                             "metrics.csv": "step,val_loss\n9,2\n19,1\n"}, (), (64, 8, [10, 20], None)),
    "passes up to a nominal batch": ({"args.yaml": "batch: 16\nnbs: 64\nimgsz: 640\nworkers: 8\n",
                                      "results.csv": "epoch,time,metrics/mAP50(B)\n1,50,0.3\n2,99,0.4\n"},
                                     ("--set-size", 640), (64, 0, [10, 20], [50, 99])),
    "world_size beside lines": ({"cfg.json": '{"world_size": 4, "per_gpu_batch_size": 8}', "m.jsonl":
                                 '{"step": 10, "val_loss": 2}\n{"step": 20, "val_loss": 1}\n'}, (),
                                (32, 4, [10, 20], None)),
    "a batch and whose it is": ({"a.csv": "step,val_loss\n10,2\n20,1\n"},
                                ("--batch", 16, "--batch-per", "worker", "--workers", 4), (64, 4, [10, 20], None)),
    "a counter within epochs": ({"b64.log": "".join(
        f"epoch {epoch} - iter {at}/10 - loss 2.0\n" for epoch in (1, 2) for at in (0, 5)) + "DEV : loss 1.5\n"},
        (), (64, 0, [20], None)),
    "JSON of epochs and iterations": ({"b64.jsonl": "".join(
        '{"epoch": %d, "iter": %d, "%s": 2.0}\n' % (epoch, at, tag) for epoch in (1, 2)
        for at, tag in ((1, "loss"), (5, "loss"), (3, "val_loss")))}, ("--set-size", 640), (64, 0, [10, 20], None)),
    "hours": ({"b64.tsv": "epoch\thours\tval_acc\n1\t0.5\t50\n2\t1.0\t60\n"}, ("--set-size", 640),
              (64, 0, [10, 20], [1800, 3600])),
    "a clock that starts again": ({"b64.csv": "step,val_loss,elapsed\n" + "".join(
        f"{10 * at},1,{10 * (at if at < 9 else at - 8)}\n" for at in range(1, 21))}, (),
        (64, 0, [*range(10, 210, 10)], [*range(10, 90, 10), *range(90, 210, 10)])),
    "two forms of one run": ({"loss.tsv": "epoch\tval_loss\n1\t2\n2\t1\n", "training.log": "epoch 1 val loss 2\n"
                              "epoch 2 val loss 1\n"}, ("--batch", 64, "--set-size", 640), (64, 0, [10, 20], None)),
    "a file for each metric, and settings above": ({
        ".hydra/config.yaml": "data:\n  batch_size: 32\ntrainer:\n  devices: 2\n",
        "dvclive/plots/metrics/train/loss.tsv": "step\tloss\n9\t3\n19\t2\n",
        "dvclive/plots/metrics/val/acc.tsv": "step\tacc\n9\t0.5\n19\t0.6\n"}, (), (64, 2, [10, 20], None)),
    "times of single steps are no clock": ({"b64.csv": "step,val_loss,seconds\n10,2,1.5\n20,1,1.4\n"}, (),
                                           (64, 0, [10, 20], None)),
    "epochs from 0": ({"b64.csv": "epoch,val_loss\n0,2\n1,1\n"}, ("--set-size", 640), (64, 0, [10, 20], None)),
    "settings of a log with a level": ({"a.log": "2024-01-01 10:00:00,1 - INFO -   batch_size: 64\n2024-01-01 10:00:00,"
                                        "2 - INFO - epoch 1 val loss 2\n"}, ("--set-size", 640), (64, 0, [10], None)),
    "OpenCLIP's results": ({"params.txt": "batch_size: 8\nworld_size: 8\naccum_freq: 1\nworkers: 4\n",
                            "out.log": "Train Epoch: 0 [5/10 (50%)] Loss: 3\n", "checkpoints/results.jsonl":
                            '{"epoch": 1, "clip_val_loss": 2}\n{"epoch": 2, "clip_val_loss": 1}\n'},
                           ("--set-size", 640), (64, 8, [10, 20], None)),
    "a counter of epochs or steps": ({"b64.csv": "step,val_loss\n0,3\n1,2\n2,1\n"},
                                     ("--unit", "epochs", "--set-size", 640), (64, 0, [10, 20, 30], None)),
    "metrics that MLflow logged without a step": (
        {"run/meta.yaml": "run_name: a\n", "run/metrics/val_loss": "1000 0.5 0\n2000 0.25 0\n",
         "run/params/epochs": "3", "run/params/batch_size": "64"}, ("--set-size", 640), (64, 0, [30], None)),
    "files of tags that TensorBoard exports": ({
        f"run-b8_s1-tag-{tag}.csv": f"Wall time,Step,Value\n1001,10,2.5\n1002,20,{end}\n1003,30,\n"
        for tag, end in (("Loss_train", 1.5), ("val_loss", 1.75))}, (), (8, 0, [10, 20], [0, 1])),
    "AllenNLP's files of epochs": ({f"b8/metrics_epoch_{at}.json": '{"epoch": %d, "training_epochs": %d, '
                                    '"training_duration": "0:0%d:00", "validation_loss": 2}' % (at, at, at + 1)
                                    for at in (0, 1)}, ("--set-size", 80), (8, 0, [10, 20], [60, 120])),
    "settings of a table's only run": ({"t.csv": "batch_size,step,val_loss\n64,10,2\n64,20,1\n"}, (),
                                       (64, 0, [10, 20], None))}


@pytest.mark.parametrize("of", MEANT)
def test_settings_and_counters_are_read_as_their_program_means_them(of, tmp_path):
    files, told, (batch, workers, steps, times) = MEANT[of]
    for name, text in files.items():
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_text(text)
    code, said = call("import", tmp_path / "runs", tmp_path / "log.h5", *told)
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [batch]
        assert ('"workers": null' in log.trials["source"][0]) == (not workers)
        assert log.trials["workers"].tolist() == [workers or 1]
        columns = [name for name in log.evaluations.columns if name.startswith("val/")]
        measured = ~np.isnan([log.evaluations[name] for name in columns]).all(axis=0)
        assert log.evaluations["step"][measured].tolist() == steps
        assert times is None or log.evaluations["train_seconds"].tolist() == times


# a folder's files, and what the refusal names
REFUSED = {"epochs or steps": ({"b64.csv": "step,val_loss\n0,3\n1,2\n2,1\n"}, "--unit steps or --unit epochs"),
           "a setting said twice": ({"a.log": "batch_size: 64\nbatch_size: 128\nstep 10 val loss 2\n"}, "--batch N"),
           "W&B's own file": ({"run-1.wandb": "x"}, "run-1.wandb is W&B's own file"),
           "settings alone": ({"b64.jsonl": '{"num_epochs": 1, "eval_every": 5}\n{"num_epochs": 2}\n'}, "tags: none"),
           "no evaluation": ({"b64.csv": "step,epoch,val_loss\n1,,\n2,,\n,1,3\n"}, "no run has a value of val_loss"),
           "a setting of two parts": ({"config.yaml": "one:\n  batch_size: 64\ntwo:\n  batch_size: 8\n",
                                       "train.log": "step=10 val_loss=8.5\n"}, "one.batch_size"),
           "epochs of unknown length": ({"b8.json": '{"loss": 1, "epoch": 1, "iter": 50, "step": 50}\n'
                                         '{"val/AP": 0.5, "step": 1}\n'}, "evaluations count epochs, of 50 steps or")}


@pytest.mark.parametrize("of", REFUSED)
def test_what_runs_leave_open_is_refused_with_the_next_move(of, tmp_path):
    for name, text in REFUSED[of][0].items():
        (tmp_path / name).write_text(text)
    code, said = call("import", tmp_path, tmp_path / "log.h5")
    assert code == 1 and REFUSED[of][1] in said.replace("\n", " ")


def test_rows_of_several_runs_without_a_name_are_runs_where_their_settings_tell_them_apart(tmp_path):
    rows = [f"{batch},{step},{1 / step}\n" for batch in (32, 64) for step in (10, 20, 30)]
    (tmp_path / "m.csv").write_text("batch_size,step,val_loss\n" + "".join(rows))
    assert [(run.parameters["batch_size"], run.rows) for run in read_runs([str(tmp_path)])] == [(32, 3), (64, 3)]
    (tmp_path / "m.csv").write_text("batch_size,step,val_loss\n" + "".join(rows + rows))
    assert "no column names the run" in call("import", tmp_path, tmp_path / "log.h5")[1].replace("\n", " ")


def test_an_event_file_with_a_wrong_byte_is_refused_and_a_torn_one_incomplete(tmp_path):
    pytest.importorskip("tensorboard")
    found_runs.event_files(tmp_path / "b4", 4, 1)
    [file] = (tmp_path / "b4").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    assert "is damaged in event" in call("import", tmp_path / "b4", tmp_path / "log.h5")[1].replace("\n", " ")
    file.write_bytes(data[:500])
    assert call("import", tmp_path / "b4", tmp_path / "log.h5")[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.trials["status"].tolist() == [Status.INCOMPLETE]


# folders of event files in a run's folder, (tag, step, value) in each, and the evaluations that they make
SPLIT_EVENTS = {
    "Keras' callback": ({"train": [("epoch_loss", 0, 2.0), ("epoch_loss", 1, 1.5)],
                         "validation": [("epoch_loss", 0, 2.5), ("epoch_loss", 1, 1.75)]}, [10, 20]),
    "Keras' callback, evaluated in steps": (
        {"train": [("epoch_loss", 0, 2.0), ("epoch_loss", 1, 1.5)],
         "validation": [("epoch_loss", 0, 2.5), ("evaluation_loss_vs_iterations", 8, 2.5), ("epoch_loss", 1, 1.75),
                        ("evaluation_loss_vs_iterations", 16, 1.75)]}, [8, 16]),
    "add_scalars": ({"": [("lr", 1, 0.1)], "A_loss_train": [("A/loss", 5, 2.0)],
                     "A_loss_val": [("A/loss", 5, 2.5), ("A/loss", 15, 1.75)]}, [5, 15]),
    "Estimator": ({"": [("loss", 5, 2.0)], "eval": [("loss", 5, 2.5), ("loss", 15, 1.75)]}, [5, 15])}


@pytest.mark.parametrize("how", SPLIT_EVENTS)
def test_event_files_of_splits_and_series_are_of_one_run(how, tmp_path):
    pytest.importorskip("tensorboard")
    folders, steps = SPLIT_EVENTS[how]
    for name, points in folders.items():
        write_events(tmp_path / "tb" / "b64" / name, points)
    code, said = call("import", tmp_path / "tb", tmp_path / "log.h5", "--set-size", 640)
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [64]
        [column] = [name for name in log.evaluations.columns if name.startswith("val/")]
        assert list(zip(log.evaluations["step"].tolist(), log.evaluations[column].tolist())) == [
            (steps[0], 2.5), (steps[1], 1.75)]


@pytest.mark.parametrize("file, settings", [
    (".hydra/config.yaml", "seed: 3\ndata:\n  name: digits\n  batch_size: 64\noptim:\n  lr: 0.5\n"),
    ("config.yaml", "_wandb:\n    value:\n        cli: 1\nbatch_size:\n    desc: null\n    value: 64\n"
     "seed:\n    value: 3\nlr:\n    value: 0.5\n"),
    ("config.yaml", "batch_size: 64   # of all workers\nseed: 3\noptim: {}\nlr: 0.5\n"),
    ("config.json", '{"batch_size": 64, "seed": 3, "optim": {"lr": 0.5}}')])
def test_settings_that_lie_beside_lines_of_text_are_parameters(file, settings, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(settings)
    (tmp_path / "train.log").write_text("step=10 val_loss=8.5\n")
    assert call("import", tmp_path, tmp_path / "log.h5")[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert [log.trials[one][0] for one in ("global_batch", "seed", "metaparameters/learning_rate")] == [64, 3, 0.5]


def test_reports_to_ray_are_taken_for_steps_and_that_is_said(tmp_path):
    write_runs(tmp_path / "made", "Ray's progress")
    said = call("import", tmp_path / "made", tmp_path / "log.h5")[1]
    assert "training_iteration counts reports, which are taken for steps" in said.replace("\n", " ")


def test_a_chart_exported_from_wandb_has_a_run_a_column(tmp_path):
    rows = [(step, errors[0], errors[0], errors[0], errors[1], errors[1], errors[1]) for step, errors in (
        (100, (0.5, np.nan)), (200, (0.25, 0.375)))]
    columns = [f"w{run}-b{run * 8}-s{run} - val/error{end}" for run in (1, 2) for end in ("", "__MIN", "__MAX")]
    (tmp_path / "chart.csv").write_text(csv_text(["Step", *columns], rows))
    assert call("import", tmp_path / "chart.csv", tmp_path / "log.h5")[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [8, 16] and log.trials["workers"].tolist() == [1, 2]
        assert log.evaluations["val/error"].tolist() == [0.5, 0.25, 0.375]
        assert log.evaluations["step"].tolist() == [100, 200, 200]


# tables of several runs: header, a row for each (number, batch, rate), {batch: its evaluations} and what --map says
TABLES = {
    "W&B's runs": ("Name,State,Runtime,batch_size,lr,_step,val/error", "swift-{0},finished,60,{1},{2},1000,0.{0}1", ""),
    "Optuna": ("number,value,params_batch_size,params_lr,state", "{0},0.{0}1,{1},{2},COMPLETE",
               'step = 1000\n[tags]\nvalue = "val/error min"\n'),
    "MLflow's search": ("run_id,status,metrics.val_error,metrics.steps,params.batch_size,params.lr",
                        "a{0},FINISHED,0.{0}1,1000,{1},{2}", ""),
    "a spreadsheet": ("batch_size,lr,steps,val_error", "{1},{2},1000,0.{0}1", ""),
    "histories": ("name,step,batch_size,lr,val_error", "x{0},500,{1},{2},0.9\nx{0},1000,{1},{2},0.{0}1", "")}


@pytest.mark.parametrize("of", TABLES)
def test_a_table_of_runs_has_a_trial_for_each(of, tmp_path):
    header, row, mapping = TABLES[of]
    runs = [(at, batch, rate) for at, (batch, rate) in enumerate((b, r) for b in (32, 64) for r in (0.1, 0.2, 0.3))]
    (tmp_path / "trials.csv").write_text("\n".join([header, *(row.format(*run) for run in runs), ""]))
    (tmp_path / "map.toml").write_text(mapping)
    code, said = call("import", tmp_path, tmp_path / "log.h5", *["--map", tmp_path / "map.toml"] * bool(mapping))
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [batch for _, batch, _ in runs]
        assert log.trials["metaparameters/learning_rate"].tolist() == [rate for *_, rate in runs]
        for at, *_ in runs:
            assert log.evaluations.of_trial("step", at)[-1] == 1000
            assert log.evaluations.of_trial("val/error", at)[-1] == pytest.approx(float(f"0.{at}1"))


def test_runs_that_a_table_says_have_crashed_are_incomplete(tmp_path):
    (tmp_path / "runs.csv").write_text("Name,State,batch_size,_step,val/error\na,finished,32,9,0.1\n"
                                       "b,crashed,32,9,0.2\n")
    assert call("import", tmp_path, tmp_path / "log.h5")[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.trials["stop_reason"].tolist() == ["the run's files say no more", "its state is crashed"]
        assert [Status(one).name for one in log.trials["status"]] == ["COMPLETE", "INCOMPLETE"]


def test_a_history_with_a_batch_that_grows_is_one_run(tmp_path):
    (tmp_path / "log.csv").write_text("id,step,batch_size,val/error\n0,10,32,0.5\n1,20,64,0.4\n2,30,64,0.3\n")
    [run] = read_runs([str(tmp_path)])
    assert run.series["step"].values.tolist() == [10, 20, 30]


def test_epochs_of_keras_are_steps_once_the_size_of_the_set_is_known(tmp_path):
    for batch in (4, 7):
        (tmp_path / f"b{batch}.csv").write_text("epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2,0.5,1.5\n"
                                                "1,0.75,1,0.625,1.25\n")
    code, said = call("import", tmp_path, tmp_path / "log.h5")
    assert code == 1 and "train_examples: steps are in epochs" in said
    assert call("import", tmp_path, tmp_path / "log.h5", "--set-size", 64)[0] == 0
    with check(tmp_path / "log.h5") as log:
        assert log.evaluations["step"].tolist() == [16, 32, 10, 20]
        assert log.evaluations.specs["val/accuracy"].better == "larger"
        assert log.evaluations["train/loss"].tolist() == [2, 1, 2, 1]


MALFORMED = {
    "m.csv": ("step,val/error\n1,0.5\n2,0.4,7\n", "m.csv:3: has 3 cells where the header has 2"),
    "n.csv": (b"step,val/error\n1,\xff\n", "n.csv:2: is not text in UTF-8"),
    "trainer_state.json": ('{"log_history": [{"loss": 1}]}', "an entry of its log_history has no step"),
    "mlflow.db": (b"SQLite format 3\0" + b"x" * 100, "is no database of MLflow"),
    "r.tsv": ("step\tloss\n1\t0.5\n2\n", "r.tsv:3: has 1 cell where the header has 2"),
    "q.jsonl": ('{"step": 1, "val/error": 0.5}\n{"step": 2}\nnone\n{"step": 3}\n', "q.jsonl:3: is no object of JSON"),
    "o.csv": ("step,val/error\n-5,0.5\n", "step is -5, not a count"),
    "p.csv": ("step,val/error\n1.5,0.5\n", "step is 1.5, not a whole number of steps")}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_named_and_nothing_is_written(name, tmp_path):
    text, message = MALFORMED[name]
    folder = tmp_path / "b8"
    folder.mkdir()
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    code, said = call("import", folder, tmp_path / "log.h5")
    assert code == 1 and message in said.replace("\n", " ") and "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b8"]


LINES = r"""lines = 'it (?P<step>\d+)/\d+ tr (?P<train_loss>\S+) val (?P<val_loss>\S+)'"""


def test_lines_of_any_form_are_read_by_a_pattern_of_the_users_own(tmp_path):
    for batch in (8, 16):
        (tmp_path / f"b{batch}").mkdir()
        (tmp_path / f"b{batch}" / "out.txt").write_text("".join(
            f"[00:{step}] it {step}/30 tr {step / 10} val 1,0{batch}.5\n" for step in (10, 20, 30)))
    (tmp_path / "map.toml").write_text(LINES)
    code, said = call("import", tmp_path / "b8", tmp_path / "b16", tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert code == 0, said
    with check(tmp_path / "log.h5") as log:
        assert log.trials["global_batch"].tolist() == [8, 16]
        assert log.evaluations["step"].tolist() == [10, 20, 30] * 2
        assert log.evaluations["val/loss"].tolist() == [108.5] * 3 + [1016.5] * 3
        assert log.steps["loss"].tolist() == [1, 2, 3] * 2


@pytest.mark.parametrize("lines, wrong", [
    ("'it (?P<step'", "not a regular expression"), (3, "not a regular expression"), ("'it (.*)'", "names the step")])
def test_a_pattern_that_is_none_is_refused_in_a_line(lines, wrong, tmp_path):
    (tmp_path / "map.toml").write_text(f"lines = {lines}")
    code, said = call("import", tmp_path, tmp_path / "log.h5", "--map", tmp_path / "map.toml")
    assert code and wrong in said and not (tmp_path / "log.h5").exists()


def test_a_damaged_file_is_left_out_if_asked_to_and_named(tmp_path):
    source = write_runs(tmp_path / "made", "trainer_state.json")
    (source / "broken").mkdir()
    (source / "broken" / "trainer_state.json").write_text('{"x')
    code, said = call("import", source, tmp_path / "log.h5")
    assert code and "trainer_state.json: is not JSON" in said and not (tmp_path / "log.h5").exists()
    code, said = call("import", source, tmp_path / "log.h5", "--skip-broken")
    assert code == 0 and "left out: " in said and "trainer_state.json: is not JSON" in said
    with check(tmp_path / "log.h5") as log:
        assert log.trials.rows == len(RUNS)
