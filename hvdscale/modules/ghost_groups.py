"""The position of a pass among the ghost groups of its step, for modules that mix examples.

    ghosts = GhostGroups(seed=0, workers=workers, device=torch.device("cpu"))
    ghosts.attach(model)                     every Dropout and BatchNorm of hvdscale.modules in it
    ghosts.at(step, groups, part)            before each pass
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..data.splits import seed_generators
from ..errors import UsageError
from ..plan.shards import Pass, stream_key
from ..workers.group import Workers


class GhostGroups:
    """The ghost groups of the pass that is being computed."""

    def __init__(self, seed: int, workers: Workers, device: torch.device):
        self.seed, self.workers, self.device = seed, workers, device
        self.generator = torch.Generator(device)
        self.step, self.groups, self.part = 0, [0], Pass(0, 0)
        self._uses: Counter[int] = Counter()                    # by layer, in this pass
        self._shapes: dict[tuple[int, int], torch.Size] = {}    # of a row, by layer and use

    def attach(self, model: nn.Module) -> None:
        """Connect the model's Dropout and BatchNorm modules to this object, and number them in order."""
        for layer, module in enumerate(m for m in model.modules() if hasattr(m, "ghosts")):
            module.ghosts, module.layer = self, layer

    def at(self, step: int, groups: list[int], part: Pass) -> None:
        """Set the next pass: ``part`` of the step's positions, which ``groups`` (bounds) partition."""
        self.step, self.groups, self.part = step, groups, part
        self._uses.clear()

    def segments(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """(group, first, last + 1) for each group with examples in the pass: its number in the step, its rows. Raises
        UsageError if a module's input does not have one row per example of the pass."""
        start, stop, _ = self.part
        if rows != stop - start:
            raise UsageError(f"a Dropout or BatchNorm of hvdscale.modules got {rows} rows in a pass of {stop - start} "
                             "examples: its input must have one row per example. Use torch's own module there, which "
                             "runs group by group")
        for group in range(bisect_right(self.groups, start) - 1, len(self.groups) - 1):
            a, b = self.groups[group:group + 2]
            if a >= stop:
                break
            yield group, max(a, start) - start, min(b, stop) - start

    def owns(self, group: int) -> bool:
        """Whether the group's first example is in this pass; exactly one pass owns a group."""
        return self.part.start <= self.groups[group] < self.part.stop

    def keep(self, layer: int, shape: torch.Size, probability: float) -> Tensor:
        """A layer's dropout mask, each value True with this probability: bool, of the given shape, one row per example.
        A group's mask is drawn whole, from its own stream (a new one each time a pass uses the layer again), then cut
        to the rows in this pass. Raises UsageError if the shape of a row depends on the pass."""
        use = self._uses[layer]
        self._uses[layer] += 1
        whole = (self.part.start, self.part.stop) in zip(self.groups, self.groups[1:])      # it may have any shape
        known = shape[1:] if whole else self._shapes.setdefault((layer, use), shape[1:])
        if known != shape[1:]:
            raise UsageError(f"a Dropout of hvdscale.modules got rows of shape {tuple(shape[1:])}, after rows of "
                             f"{tuple(known)}: with examples padded to the longest of a pass, masks depend on the "
                             "number of workers. Set group_by_group=always, or pad all to one length")
        where, rows = (layer, use) if use else (layer,), []
        for group, first, last in self.segments(shape[0]):
            a, b = self.groups[group:group + 2]
            self.generator.manual_seed(stream_key(self.seed, "dropout", self.step, group, *where))
            drawn = torch.rand((b - a, *shape[1:]), generator=self.generator, device=self.device)
            skipped = self.part.start + first - a
            rows.append(drawn[skipped:skipped + last - first])
        return torch.cat(rows) < probability

    def seed_generators(self) -> None:
        """Seed torch's, numpy's and Python's global generators from the stream of the pass's first group."""
        key = stream_key(self.seed, "module", self.step, bisect_right(self.groups, self.part.start) - 1)
        seed_generators(key, gpus=self.device.type != "cpu")        # GPUs that are not there take a millisecond
