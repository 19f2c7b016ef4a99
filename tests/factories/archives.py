"""Archives in the published layout, and logs like them, of any size.

    write_archive("folder", studies=4, trials=40, evaluations=2000)                    the files
    write_big_log("big.h5", studies=454, trials=194_000, evaluations=71_600_000)       the log alone

The workloads and batch sizes are the published ones (Shallue et al. 2019, README of the archive); what was measured is
made: errors fall towards a floor, faster the nearer the learning rate is to the best, with noise."""
import json
import os

import numpy as np

from hvdscale.exchange.files import RENAMED
from hvdscale.exchange.imported import imported_log
from hvdscale.log.schema import Status

POWERS = [2**k for k in range(17)]


def _powers(first, last, *more):
    return [b for b in POWERS if first <= b <= last] + list(more)


MNIST_SGD = ("fc_1024", "fc_1024_1024", "fc_1024_1024_1024", "fc_128_128_128", "fc_2048_2048_2048", "fc_256_256_256",
             "fc_512_512_512", "fc_64_64_64", "simple_cnn_base", "simple_cnn_narrow")
SPARSE = [2, 8, 32, 128, 512, 2048, 8192, 32768, 55000]
# dataset, model, optimizer, batch sizes: 35 workloads, 454 studies
WORKLOADS = [
    ("cifar_10", "resnet_8", "nesterov_momentum", _powers(2, 8192)), ("cifar_10", "resnet_8", "sgd", _powers(2, 8192)),
    ("common_crawl", "transformer_base", "nesterov_momentum", [32, 64, 256, 1024, 4096, 16384]),
    ("fashion_mnist", "simple_cnn_base", "nesterov_momentum", SPARSE),
    ("imagenet", "resnet_50", "nesterov_momentum", _powers(64, 65536)),
    ("imagenet", "vgg_11", "nesterov_momentum", [32, 64, *_powers(256, 65536)]),
    ("imagenet_subsets/imagenet_half_classes", "resnet_50", "nesterov_momentum", _powers(64, 32768)),
    ("imagenet_subsets/imagenet_half_images", "resnet_50", "nesterov_momentum", _powers(64, 32768)),
    ("lm1b", "lstm", "nesterov_momentum", [16, 64, 256, 1024, 4096, 16384, 32768]),
    ("lm1b", "transformer_base", "nesterov_momentum", _powers(16, 32768)),
    ("lm1b", "transformer_narrow_and_shallow", "nesterov_momentum", _powers(16, 32768)),
    ("lm1b", "transformer_shallow", "momentum", [32, 128, 512, 2048, 8192, 32768]),
    ("lm1b", "transformer_shallow", "nesterov_momentum", _powers(16, 32768)),
    ("lm1b", "transformer_shallow", "sgd", [32, 128, 512, 2048, 8192]),
    ("lm1b", "transformer_wide", "nesterov_momentum", _powers(16, 32768)),
    *[("mnist", model, "sgd", _powers(1, 32768, 55000)) for model in MNIST_SGD],
    ("mnist", "simple_cnn_base", "momentum", _powers(1, 32768, 55000)),
    ("mnist", "simple_cnn_base", "nesterov_momentum", [1, *SPARSE]),
    ("mnist", "simple_cnn_wide", "sgd", _powers(1, 32768)),
    ("mnist_subsets/mnist_13750", "simple_cnn_base", "nesterov_momentum", _powers(1, 8192, 13750)),
    ("mnist_subsets/mnist_27500", "simple_cnn_base", "nesterov_momentum", _powers(1, 16384, 27500)),
    ("mnist_subsets/mnist_55000", "simple_cnn_base", "nesterov_momentum", _powers(1, 32768, 55000)),
    ("mnist_subsets/mnist_6875", "simple_cnn_base", "nesterov_momentum", _powers(1, 4096, 6875)),
    ("open_images_v4", "resnet_50", "nesterov_momentum", _powers(64, 32768)),
    ("solution_quality/fashion_mnist", "simple_cnn_base", "nesterov_momentum", [1, *SPARSE]),
    ("solution_quality/mnist", "simple_cnn_base", "nesterov_momentum", [1, *SPARSE]),
]
STUDIES = [(dataset, model, optimizer, batch) for dataset, model, optimizer, batches in WORKLOADS for batch in batches]


def space_of(optimizer, dataset, train_steps):
    """The search space, as study.json has it."""
    space = {"learning_rate": {"max_value": 10.0, "min_value": 0.0001, "scale": "LOG_SCALE", "type": "DOUBLE"}}
    if optimizer != "sgd":
        space["momentum"] = {"max_value": 0.9999, "min_value": 0.9, "scale": "REVERSE_LOG_SCALE", "type": "DOUBLE"}
    if dataset.startswith("imagenet"):
        space["label_smoothing"] = {"feasible_points": [0.0, 0.01, 0.1], "type": "DISCRETE"}
        space["end_learning_rate_factor"] = {"max_value": 0.1, "min_value": 0.0001, "scale": "LOG_SCALE",
                                             "type": "DOUBLE"}
        space["learning_rate_decay_steps"] = {"max_value": train_steps, "min_value": train_steps // 2, "scale": "",
                                              "type": "INTEGER"}
    return space


def drawn(random, space, trials):
    """A value of each parameter for each trial, {name: array}."""
    found = {}
    for name, config in space.items():
        if config["type"] == "DISCRETE":
            found[name] = random.choice(config["feasible_points"], trials)
            continue
        low, high = config["min_value"], config["max_value"]
        if config["type"] == "INTEGER":
            found[name] = random.integers(low, high + 1, trials)
        elif config["scale"] == "REVERSE_LOG_SCALE":
            found[name] = 1 - np.exp(random.uniform(np.log(1 - high), np.log(1 - low), trials))
        else:
            found[name] = np.exp(random.uniform(np.log(low), np.log(high), trials))
    return found


class Study:
    """The made trials of one study; evaluations are laid end to end, trial after trial.

    ids, status      arrays of shape (trials,)
    points           {parameter: array of shape (trials,)}
    first            int array of shape (trials + 1,): trial i has rows first[i]:first[i + 1]
    step, metrics    arrays of shape (rows,); metrics by name"""

    def __init__(self, random, dataset, model, optimizer, batch, trials, evaluations):
        self.dataset, self.model, self.optimizer, self.batch = dataset, model, optimizer, batch
        per_trial = max(1, round(evaluations / trials / 0.86)) if trials else 1      # some trials end early
        self.every = int(max(1, 2 ** np.round(np.log2(20 * (1 + 300 / batch)))))
        self.space = space_of(optimizer, dataset, max(2, self.every * (per_trial - 1)))
        self.ids = np.arange(1, trials + 1) + np.cumsum(random.random(trials) < 0.02)      # some are left out
        self.points = drawn(random, self.space, trials)
        rate = self.points["learning_rate"] / (1 - self.points.get("momentum", 0.0))
        off = np.abs(np.log(rate / (0.05 * batch ** 0.5)))                       # from the best rate
        self.status = np.where(off > 5.5, Status.INFEASIBLE, Status.COMPLETE).astype(np.int8)
        self.status[random.random(trials) < 0.05] = Status.INCOMPLETE
        counts = np.full(trials, per_trial)
        short = self.status != Status.COMPLETE
        counts[short] = np.maximum(1, per_trial * random.random(short.sum())).astype(int)
        counts = _summing_to(counts, max(evaluations, trials))
        self.train_steps = self.every * (counts[~short].min(initial=per_trial) - 1).item()
        self.first = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(self.first[-1]) - np.repeat(self.first[:-1], counts)
        self.step = within * self.every
        self.metrics = self._measured(random, off, counts, within)

    def _measured(self, random, off, counts, within):
        rows = len(within)
        pace = np.repeat((1 + 0.4 * off ** 2) * random.lognormal(0, 0.2, len(off)), counts)
        share = np.exp(-1.5 * (within / pace / max(1, counts.max()) * 30) ** 0.5)
        last = self.first[1:][self.status == Status.INFEASIBLE] - 1
        metrics = "average_precision" if self.dataset == "open_images_v4" else "error", "cross_entropy"
        names = [f"{split}/{metric}" for split in ("train", "val", "test") for metric in sorted(metrics)]
        found = {}
        for name in ["val/cross_entropy"] if self.dataset in ("lm1b", "common_crawl") else names:
            split = name.partition("/")[0]
            noise = 1 + random.normal(0, 0.02, rows)
            if name.endswith("cross_entropy"):
                values = ((0.05 if split == "train" else 0.08) + 2.2 * share * noise).astype(np.float32)
                values = np.round(values.astype(np.float64), 6)
            else:
                values = np.round((0.006 + 0.88 * share * noise).clip(0, 1) * 10000) / 10000
            if name.endswith("average_precision"):
                values = np.round(1 - values, 4)
            values[last] = np.nan
            found[name] = values
        if "train/error" in found:
            found["train/error"][random.random(rows) < 0.001] = np.nan          # gaps
        return found

    @property
    def path(self):
        return f"{self.dataset}/{self.model}/{self.optimizer}/{self.batch}"

    def study_json(self):
        """What study.json holds."""
        return {"batch_size": self.batch, "dataset": self.dataset.rpartition("/")[2], "early_stopping": False,
                "model": self.model, "optimizer": self.optimizer, "parameter_configs": self.space,
                "train_steps": self.train_steps}

    def metadata(self, row):
        """What a trial's metadata.json holds."""
        trial = int(self.ids[row])
        steps = int(self.step[self.first[row + 1] - 1])
        return {"_internal_study_name": f"{self.model}-bs{self.batch}", "_internal_trial_id": trial + 1000,
                "parameters": {name: values[row].item() for name, values in self.points.items()},
                "status": Status(self.status[row]).name, "steps": steps, "trial_id": trial}


def _summing_to(counts, total):
    """The counts, each at least 1, scaled so that their sum is ``total``."""
    if not len(counts):
        return counts
    ends = np.round(np.cumsum(counts - 1) * ((total - len(counts)) / max(1, (counts - 1).sum()))).astype(int)
    out = np.diff(ends, prepend=0) + 1
    out[-1] += total - out.sum()
    return out


def made_studies(studies, trials, evaluations, seed=0):
    """Studies with so many trials and evaluations in all, made one after the other."""
    random = np.random.default_rng(seed)
    chosen = [STUDIES[i % len(STUDIES)] for i in range(studies)]
    trial_counts = _summing_to(random.integers(100, 700, studies), trials)
    weights = trial_counts * random.lognormal(0, 0.5, studies)
    row_counts = _summing_to(np.maximum(1, weights / weights.sum() * evaluations), evaluations)
    row_counts = np.maximum(trial_counts, row_counts)
    for (dataset, model, optimizer, batch), number, rows in zip(chosen, trial_counts, row_counts):
        yield Study(random, dataset, model, optimizer, batch, int(number), int(rows))


def write_big_log(path, studies=454, trials=194_000, evaluations=71_600_000, seed=0):
    """A log as the import of a made archive gives it, without the archive; memory is that of one study."""
    reasons = np.array([f"the archive says {status.name}" for status in Status], object)
    with imported_log(path, {"kind": "archive", "from": "made"}, overwrite=True) as out:
        for study in made_studies(studies, trials, evaluations, seed):
            names = [RENAMED.get(name, name) for name in study.points]
            plan = {"problem": {}, "measurement": {"budget_steps": study.train_steps},
                    "archive": {"path": study.path, "study": study.study_json()}}
            ids = out.trials([dict(zip(names, point)) for point in zip(*study.points.values())], {
                "dataset": study.dataset, "model": study.model, "optimizer": study.optimizer, "plan": json.dumps(plan),
                "source": json.dumps({"path": study.path, "imported": "archive"}), "status": study.status,
                "global_batch": study.batch, "seed": study.ids, "budget_steps": study.train_steps,
                "stop_reason": reasons[study.status]})
            out.evaluations(ids, np.diff(study.first), study.step, study.step * study.batch, study.metrics)


def write_archive(root, studies=4, trials=40, evaluations=2000, seed=0, full=False):
    """A made archive in the folder ``root``; gives its studies. full: values of all the digits that repr() writes."""
    found = []
    for study in made_studies(studies, trials, evaluations, seed):
        write_study(root, study, full)
        found.append(study)
    return found


def write_study(root, study, full=False):
    """One study below ``root``, in the style of the published files."""
    folder = os.path.join(root, study.path)
    os.makedirs(folder, exist_ok=True)
    write_text(os.path.join(folder, "study.json"), published_json(study.study_json()))
    names = [name.replace("/error", "/classification_error").replace("/cross_entropy", "/cross_entropy_error")
             for name in study.metrics]
    values = [column + full * 1e-9 * np.arange(len(column)) / 7 for column in study.metrics.values()]
    cells = [["" if v != v else repr(v) for v in column.tolist()] for column in values]
    lines = np.array([*map(",".join, zip(map(str, study.step.tolist()), *cells))], object)
    header = ",".join(["step", *names])
    for row, trial in enumerate(study.ids.tolist()):
        place = os.path.join(folder, str(trial))
        os.mkdir(place)
        write_text(os.path.join(place, "metadata.json"), published_json(study.metadata(row)))
        measured = lines[study.first[row]:study.first[row + 1]]
        write_text(os.path.join(place, "measurements.csv"), "\n".join([header, *measured, ""]))


def write_text(path, text):
    with open(path, "w", newline="") as file:
        file.write(text)


def published_json(value):
    """As the published files are written: two spaces, and one after each comma."""
    return json.dumps(value, indent=2, sort_keys=True, separators=(", ", ": "))
