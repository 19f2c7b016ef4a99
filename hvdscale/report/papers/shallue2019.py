"""The figures of Shallue et al. 2019 (arXiv 1811.03600) as data: workloads, targets, budgets, in the paper's order.

Workloads have the names of the published archive, dataset/model/optimizer; logs of hvdscale itself are found by theirs.
Goals and budgets are those of the published analysis, except that figures 1 and 8 have one goal for Fashion MNIST and
that axes say what they show. Chosen here: which panels are normalised (where models or data sets differ), the goal of
figure 9 and its batches (the smallest, a middle one, the largest), the goals of figure 5 (those of figure 1), the goals
of figure 2 on LM1B and the budgets of figure 11 between the published ends.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...analysis.trials import JobKey

SOURCE = "Shallue et al. 2019, arXiv 1811.03600"
STEPS, NORMALISED, SPLIT, BEST, TRIALS, BUDGET_TRIALS, BEST_UNDER = (
    "steps", "normalised", "split", "best", "trials", "budget-trials", "best-under")
TRIALS_TAKEN = 100          # feasible ones, the first by id, of each study ...
TAKEN = {"lm1b/lstm/nesterov_momentum": 50, "common_crawl/transformer_base/nesterov_momentum": 50,
         "lm1b/transformer_shallow/sgd": 50}                    # ... but of these
SAME_MODEL = {"simple_cnn": "simple_cnn_base", "transformer": "transformer_base"}
SAME_OPTIMIZER = {"nesterov": "nesterov_momentum"}
SUBSETS = {"mnist": (6875, 13750, 27500, 55000)}
FOLDERS = {"imagenet_half_images": "imagenet_subsets", "imagenet_half_classes": "imagenet_subsets",
           **{f"mnist_{size}": "mnist_subsets" for size in SUBSETS["mnist"]}}


@dataclass(frozen=True)
class Line:
    """One curve: a workload and its target, and what it is called in its panel."""

    workload: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """The curves of one panel; ``ordered``: easy to strict, small to large; ``budgets``: of steps and of epochs."""

    title: str
    lines: tuple[Line, ...]
    ordered: bool = False
    budgets: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Sheet:
    """One figure of the paper. ``batch``, ``metaparameter``: what its kind asks for."""

    number: str
    kind: str
    title: str
    panels: tuple[Panel, ...]
    batch: int = 0
    metaparameter: str = ""

    @property
    def apart(self) -> bool:
        """Whether its panels are figures of their own, a, b, ...: curves of several names need each a legend."""
        return self.kind == BEST_UNDER or max(len(panel.lines) for panel in self.panels) > 1 and self.kind != TRIALS


def names_of(workload: JobKey) -> tuple[str, ...]:
    """The archive's names that an analysis.trials.JobKey goes by, the most its own first."""
    dataset, model = workload.dataset, SAME_MODEL.get(workload.model, workload.model)
    optimizer = SAME_OPTIMIZER.get(workload.optimizer, workload.optimizer)
    datasets = [f"{FOLDERS[dataset]}/{dataset}" if dataset in FOLDERS else dataset]
    if workload.train_examples in SUBSETS.get(dataset, ()):
        subset = f"{dataset}_{workload.train_examples}"
        if workload.train_examples == max(SUBSETS[dataset]):
            datasets += [f"{FOLDERS[subset]}/{subset}"]
        else:
            datasets = [f"{FOLDERS[subset]}/{subset}"]
    if datasets[0] in ("mnist", "fashion_mnist"):
        datasets.append(f"solution_quality/{datasets[0]}")
    return tuple(f"{one}/{model}/{optimizer}" for one in datasets)


def _nesterov(workload: str) -> str:
    return f"{workload}/nesterov_momentum"


MNIST = Line(_nesterov("mnist/simple_cnn_base"), "val/error<0.01", "MNIST")
FASHION = Line(_nesterov("fashion_mnist/simple_cnn_base"), "val/error<0.1", "Fashion MNIST")
CIFAR = Line(_nesterov("cifar_10/resnet_8"), "val/error<0.3")
IMAGENET = Line(_nesterov("imagenet/resnet_50"), "val/error<0.25", "ImageNet")
OPEN_IMAGES = Line(_nesterov("open_images_v4/resnet_50"), "val/average_precision>0.31", "Open Images")
LM1B = Line(_nesterov("lm1b/transformer_base"), "val/cross_entropy<3.9", "LM1B")
COMMON_CRAWL = Line(_nesterov("common_crawl/transformer_base"), "val/cross_entropy<3.9", "Common Crawl")
VGG = Line(_nesterov("imagenet/vgg_11"), "val/error<0.35")
LSTM = Line(_nesterov("lm1b/lstm"), "val/cross_entropy<3.9")

LARGE = (5e3, 5e4, 5e5, 5e6), (10, 100, 1000, 10_000)        # budgets
NINE = tuple(Panel(title, (line,)) for title, line in (
    ("Simple CNN on MNIST", MNIST), ("Simple CNN on Fashion MNIST", FASHION), ("ResNet-8 on CIFAR-10", CIFAR),
    ("ResNet-50 on ImageNet", IMAGENET), ("ResNet-50 on Open Images", OPEN_IMAGES), ("Transformer on LM1B", LM1B),
    ("Transformer on Common Crawl", COMMON_CRAWL), ("VGG-11 on ImageNet", VGG), ("LSTM on LM1B", LSTM)))


def _goals(title: str, line: Line, goals: Iterable[float]) -> Panel:
    return Panel(title, tuple(Line(line.workload, f"{line.target.split('<')[0]}<{goal:g}", f"goal {goal:g}")
                              for goal in goals), ordered=True)


def _of_sizes(title: str, template: str, target: str, sizes: Iterable[tuple[str, str]], ordered: bool = True) -> Panel:
    return Panel(title, tuple(Line(template.format(name), target, label) for name, label in sizes), ordered)


TRANSFORMERS = (("transformer_narrow_and_shallow", "narrow and shallow"), ("transformer_shallow", "shallow"),
                ("transformer_base", "base"), ("transformer_wide", "wide"))
OPTIMIZERS = (("sgd", "SGD"), ("momentum", "momentum"), ("nesterov_momentum", "Nesterov momentum"))
FC_SIZES = (("fc_64_64_64", "64, 64, 64"), ("fc_128_128_128", "128, 128, 128"), ("fc_256_256_256", "256, 256, 256"),
            ("fc_512_512_512", "512, 512, 512"), ("fc_1024", "1024"), ("fc_1024_1024", "1024, 1024"),
            ("fc_1024_1024_1024", "1024, 1024, 1024"), ("fc_2048_2048_2048", "2048, 2048, 2048"))

MODELS = (
    Panel("MNIST", (Line("mnist/fc_1024_1024_1024/sgd", "val/error<0.03", "fully connected"),
                    Line("mnist/simple_cnn_base/sgd", "val/error<0.03", "Simple CNN"))),
    Panel("ImageNet", (Line(IMAGENET.workload, "val/error<0.35", "ResNet-50"),
                       Line(VGG.workload, VGG.target, "VGG-11"))),
    Panel("LM1B", (Line(LM1B.workload, LM1B.target, "Transformer"), Line(LSTM.workload, LSTM.target, "LSTM"))),
    _of_sizes("Fully connected on MNIST", "mnist/{}/sgd", "val/error<0.03", FC_SIZES),
    _of_sizes("Simple CNN on MNIST", "mnist/{}/sgd", "val/error<0.01", (
        ("simple_cnn_narrow", "narrow"), ("simple_cnn_base", "base"), ("simple_cnn_wide", "wide"))),
    _of_sizes("Transformer on LM1B", "lm1b/{}/nesterov_momentum", "val/cross_entropy<4.2", TRANSFORMERS))

FIGURES = (
    Sheet("1", STEPS, "Steps to target", NINE),
    Sheet("2", STEPS, "Several targets", (
        _goals("Simple CNN on MNIST", MNIST, (0.016, 0.014, 0.012, 0.010, 0.008)),
        _goals("ResNet-50 on ImageNet", IMAGENET, (0.31, 0.29, 0.27, 0.25)),
        _goals("Transformer on LM1B", LM1B, (4.05, 4.0, 3.95, 3.9, 3.85, 3.8)))),
    Sheet("3", NORMALISED, "Models, widths and depths", MODELS),
    Sheet("4", STEPS, "Optimizers", (
        _of_sizes("Simple CNN on MNIST", "mnist/simple_cnn_base/{}", "val/error<0.01", OPTIMIZERS, False),
        _of_sizes("Shallow Transformer on LM1B", "lm1b/transformer_shallow/{}", "val/cross_entropy<3.9", OPTIMIZERS,
                  False),
        _of_sizes("ResNet-8 on CIFAR-10", "cifar_10/resnet_8/{}", "val/error<0.3", OPTIMIZERS[::2], False))),
    Sheet("5", NORMALISED, "Data sets", (
        Panel("Simple CNN", (MNIST, FASHION)), Panel("ResNet-50", (IMAGENET, OPEN_IMAGES)),
        Panel("Transformer", (LM1B, COMMON_CRAWL)))),
    Sheet("6", NORMALISED, "Sizes of the data set", (
        _of_sizes("Simple CNN on MNIST", "mnist_subsets/mnist_{}/simple_cnn_base/nesterov_momentum", "val/error<0.02", [
            (str(size), f"{size:,} examples") for size in SUBSETS["mnist"]]),
        Panel("ResNet-50 on ImageNet", (
            Line(IMAGENET.workload, "val/error<0.25", "all of ImageNet"),
            Line(_nesterov("imagenet_subsets/imagenet_half_images/resnet_50"), "val/error<0.3", "half the images"),
            Line(_nesterov("imagenet_subsets/imagenet_half_classes/resnet_50"), "val/error<0.3",
                 "half the classes"))))),
    Sheet("7", SPLIT, "Label smoothing", (Panel("ResNet-50 on ImageNet", (IMAGENET,)),),
          metaparameter="label_smoothing"),
    Sheet("8", BEST, "Best effective learning rate", NINE, metaparameter="effective_lr"),
    Sheet("9", BUDGET_TRIALS, "Trials under budgets of steps and of epochs", (
        Panel("Transformer on LM1B", (LM1B,), budgets=((25_000,), (1,))),)),
    Sheet("10", TRIALS, "Trials of Transformers of four sizes on LM1B", (
        replace(MODELS[-1], budgets=((50_000,), ())),), batch=1024),
    Sheet("11", BEST_UNDER, "Best under budgets", (
        Panel("Simple CNN on MNIST", (
            Line(_nesterov("solution_quality/mnist/simple_cnn_base"), "val/error<0.01"),), budgets=LARGE),
        Panel("Simple CNN on Fashion MNIST", (
            Line(_nesterov("solution_quality/fashion_mnist/simple_cnn_base"), "val/error<0.1"),), budgets=LARGE),
        Panel("Transformer on LM1B", (LM1B,), budgets=((1e4, 1e5, 1e6), (0.2, 2, 20))))))
