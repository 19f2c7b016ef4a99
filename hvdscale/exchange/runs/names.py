"""Names of tags and settings in other programs' runs, the likeliest first."""
from .run import EPOCH, SECONDS, STEP

STEP_NAMES = (STEP, "trainer/global_step", "train/global_step", "global_step", "Step", "steps", "iteration",
              "Iteration", "iter", "iters", "Iter", "current_steps", "num_updates", "updates", "update", "global_iter",
              "trained_steps", "_step")
EPOCH_NAMES = (EPOCH, "Epoch", "epochs", "train/epoch", "current_epoch", "epoch_num")
REPORTS = ("training_iteration",)       # reports to Ray, be it of a step or of an epoch
LENGTHS = ("max_steps", "num_steps", "train_steps", "total_steps")     # of whole runs, in tables with a row a run
EPOCHS = ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs")
EXAMPLES = ("examples_seen", "samples_seen", "consumed_samples", "num_samples", "n_samples", "images_seen")
TOKENS = ("tokens_seen", "consumed_tokens", "num_tokens", "n_tokens", "total_tokens", "throughput/total_tokens")
# batches of a step over all workers; of one worker; and those whose names do not say whose they are
GLOBAL = ("global_batch", "global_batch_size", "global batch size", "global_train_batch_size", "total_batch_size",
          "total_train_batch_size", "effective_batch_size", "batch_size_total", "ims_per_batch", "IMS_PER_BATCH")
PER_WORKER = ("per_device_train_batch_size", "per_device_batch_size", "per_gpu_train_batch_size", "per_gpu_batch_size",
              "batch_size_per_gpu", "batch_size_per_device", "batch_size_per_worker", "local_batch_size", "local_batch",
              "device_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu",
              "samples_per_gpu", "imgs_per_gpu", "images_per_gpu", "train_batch_size_per_gpu", "batch_per_gpu")
PLAIN = ("train_batch_size", "batch_size", "batch", "bs", "train/batch_size", "training.batch_size", "train.batch_size",
         "bsz", "mini_batch_size", "minibatch_size", "batchsize", "batchSize", "BATCH_SIZE", "train_bs",
         "batch_size_train")
BATCH_NAMES = (*GLOBAL, *PLAIN, *PER_WORKER)
# counts of training processes; a plain "workers" is in most programs the number of a loader's processes
WORKERS = ("data_parallel_size", "world_size", "WORLD_SIZE", "n_gpus", "num_gpus", "n_gpu", "ngpus", "ngpu",
           "num_gpu", "gpus", "num_processes", "distributed_world_size", "dp_size", "num_training_workers",
           "n_workers_train")
PER_NODE = ("devices", "num_devices", "trainer.devices", "gpus_per_node", "nproc_per_node", "ngpus_per_node",
            "n_gpus_per_node")
NODES = ("num_nodes", "nnodes", "n_nodes", "nodes", "trainer.num_nodes")
LOADERS = ("workers", "num_workers", "n_workers", "dataloader_num_workers", "workers_per_gpu", "NUM_WORKERS")
ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "trainer.accumulate_grad_batches",
                "grad_accum_steps", "grad_accum", "accum_freq", "update_freq", "accumulation_steps", "accum_iter")
TIMED = ("train_seconds", "accumulated_submission_time", "train_time step_seconds")      # evaluations left out
TIMES = (SECONDS, "_runtime", "Runtime", "time_total_s", "Relative Time (Process)", "elapsed", "elapsed_time",
         "total_duration")
STEP_TIMES = ("step_seconds", "step_time", "time_per_step", "train/step_time", "perf/step_time", "time step_seconds",
              "dt step_seconds", "elapsed time per iteration step_seconds", "iter time step_seconds")
LOSSES = ("loss", "train/loss", "train_loss", "train_loss_step", "training_loss", "train/loss_step", "Train/loss",
          "Loss/train", "loss/train", "loss/train/total", "Train loss/train/total", "lm loss", "total_loss",
          "train/CrossEntropyLoss", "train/loss_total", "Loss/train_batch", "Loss", "training/loss", "losses/train",
          "loss_metrics/global_avg_loss", "trl")
KNOWN = {"tel": "val/loss", "trl": "train/loss"}        # of llm.c
RATES = ("lr", "learning_rate", "train/lr", "train/learning_rate", "opt/lr", "LR", "learning rate", "lr/group0",
         "lr/pg0", "Train/lr", "optim/learning_rate_group0")
SETTINGS = {
    "seed": ("seed", "random_seed", "rng_seed", "manual_seed", "trainer.seed", "training.seed", "SEED"),
    "dataset": ("dataset", "data", "dataset_name", "experiment"), "model": ("model", "model_name", "arch"),
    "optimizer": ("optimizer", "optim", "optimizer_name", "optimizer.name", "opt")}
POINTS = {"learning_rate": ("learning_rate", "lr", "optimizer.lr", "optimizer.learning_rate", "optimizer/lr", "base_lr",
                            "max_lr", "lr0", "BASE_LR"),
          "momentum": ("momentum",), "weight_decay": ("weight_decay", "wd"), "dropout": ("dropout",),
          "warmup_steps": ("warmup_steps", "warmup"), "label_smoothing": ("label_smoothing",),
          "beta1": ("beta1", "adam_beta1"), "beta2": ("beta2", "adam_beta2"),
          "clip_norm": ("clip_norm", "max_grad_norm", "grad_clip")}
# columns of a table whose values tell runs apart
TRIAL_NAMES = {name.lower() for names in (BATCH_NAMES, WORKERS, *SETTINGS.values(), *POINTS.values()) for name in names}
